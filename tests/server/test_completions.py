from __future__ import annotations

import asyncio
import json
import time

import httpx
import openai
import pytest

from headway.core.params import SamplingParams
from server.fake_engine import BOS, FakeEngine, delta
from server.serving import MODEL


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "hello"} | body)


def events(response: httpx.Response) -> list[dict[str, object]]:
    """The events of a complete stream, `[DONE]` checked and left out."""
    assert response.status_code == 200
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_completion_has_openais_shape(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        delta("He", cached=4),
        delta("y", finish="stop", stop_reason="!", cached=4),
    ]
    before = int(time.time())
    answer = post(client, model=MODEL).json()
    assert answer.pop("id").startswith("cmpl-")
    assert before <= answer.pop("created") <= time.time()
    assert answer == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "text": "Hey",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": "!",
            }
        ],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 3,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


def test_max_tokens_is_16_where_the_client_says_nothing(
    client: httpx.Client, engine: FakeEngine
) -> None:
    for body in ({}, {"max_tokens": None}):
        post(client, **body)
        assert engine.added.get_nowait().params == SamplingParams(max_tokens=16)


def test_every_sampling_field_reaches_the_engine(client: httpx.Client, engine: FakeEngine) -> None:
    fields = {
        "max_tokens": 7,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "allowed_token_ids": [5, 4],
        "bad_words": ["no"],
        "logprobs": 3,
        "prompt_logprobs": 0,
        "seed": -3,
        "stop": ["a", "b"],
        "stop_token_ids": [4, 5],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    post(
        client,
        **fields,
        queue_timeout_ms=1500,
        logit_bias={"7": -1.5},
        priority=-2,
        cache_salt="mine",
        user="me",
        n=1,
    )
    request = engine.added.get_nowait()
    assert request.params == SamplingParams(**fields, logit_bias={7: -1.5})
    assert (request.priority, request.cache_salt) == (-2, "mine")
    assert request.queue_timeout_s == 1.5


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("ab", [[BOS, 97, 98]]),
        ([5, 6, 7], [[5, 6, 7]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_a_prompt_is_text_or_tokens_one_or_many(
    client: httpx.Client, engine: FakeEngine, prompt: object, token_ids: list[list[int]]
) -> None:
    choices = post(client, prompt=prompt, max_tokens=1).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(token_ids)))
    added = [engine.added.get_nowait() for _ in token_ids]
    assert [request.prompt_token_ids for request in added] == token_ids
    assert len({request.request_id for request in added}) == len(added)


def test_choices_are_in_the_order_of_the_prompts(client: httpx.Client) -> None:
    answer = post(client, prompt=["one", "three"], max_tokens=100).json()
    assert [choice["text"] for choice in answer["choices"]] == ["\x01one", "\x01three"]
    assert answer["usage"]["prompt_tokens"] == 4 + 6
    assert answer["usage"]["completion_tokens"] == 4 + 6


def test_a_stream_is_server_sent_events_that_end_with_done(client: httpx.Client) -> None:
    response = post(client, stream=True, max_tokens=3)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    chunks = events(response)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["l", "l", "o"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_a_token_whose_text_is_held_back_makes_an_event_without_text(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = lambda request: [
        delta(tokens=[1]),
        delta("é", tokens=[2]),
        delta(tokens=[3], finish="stop"),
    ]
    chunks = events(post(client, stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "é", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_usage_comes_last_and_alone_where_it_is_asked_for(client: httpx.Client) -> None:
    chunks = events(post(client, stream=True, max_tokens=2, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_streams_of_several_prompts_are_interleaved(client: httpx.Client) -> None:
    chunks = events(post(client, prompt=["abc", "xyz"], max_tokens=3, stream=True))
    order = [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks]
    assert order == [(0, "a"), (1, "x"), (0, "b"), (1, "y"), (0, "c"), (1, "z")]


def test_openai_python_reads_a_completion(openai_client: openai.OpenAI) -> None:
    completion = openai_client.completions.create(model=MODEL, prompt="hello", max_tokens=2)
    assert completion.choices[0].text == "lo"
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 8


def test_openai_python_reads_a_stream(openai_client: openai.OpenAI) -> None:
    stream = openai_client.completions.create(
        model=MODEL,
        prompt="hello",
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "llo"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


def test_openai_python_reads_streams_of_vllms_fields_at_the_same_time(
    openai_client: openai.OpenAI,
) -> None:
    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=3,
            echo=True,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
            extra_body={
                "return_token_ids": True,
                "include_stop_str_in_output": True,
                "queue_timeout_ms": 60_000,
            },
        )
        chunks = [chunk async for chunk in stream]
        assert all(chunk.usage is not None for chunk in chunks)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        tokens = [token for choice in choices for token in choice.model_extra["token_ids"]]
        assert list(map(ord, prompt[-3:])) == tokens
        return "".join(choice.text for choice in choices)

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=openai_client.base_url, api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in ("hello", "there")))

    assert asyncio.run(main()) == ["hellollo", "thereere"]


def test_a_long_prompt_is_tokenised_all_the_same(client: httpx.Client, engine: FakeEngine) -> None:
    post(client, prompt="x" * 100_000, max_tokens=1)
    assert len(engine.added.get_nowait().prompt_token_ids) == 100_001


def test_bos_comes_before_a_text_unless_it_is_not_wanted(
    client: httpx.Client, engine: FakeEngine
) -> None:
    for wanted in (None, True, False):
        post(client, prompt="ab", add_special_tokens=wanted)
    prompts = [engine.added.get_nowait().prompt_token_ids for _ in range(3)]
    assert prompts == [[BOS, 97, 98], [BOS, 97, 98], [97, 98]]


def test_hints_that_need_nothing_here_are_taken(client: httpx.Client, engine: FakeEngine) -> None:
    post(client, prompt_cache_key="a user's", metadata={"a": "b"}, service_tier="flex")
    assert engine.added.get_nowait().cache_salt is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "shown"), [("hé", "hé"), ([BOS, 104, 105], "\x01hi"), (["a", "b"], None)]
)
def test_an_echo_is_the_prompt_before_the_output(
    client: httpx.Client, prompt: object, shown: str | None, stream: bool
) -> None:
    response = post(client, prompt=prompt, echo=True, max_tokens=1, stream=stream)
    answers = events(response) if stream else [response.json()]
    texts: dict[int, str] = {}
    for choice in (choice for answer in answers for choice in answer["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    prompts = ["a", "b"] if shown is None else [shown]
    assert texts == {index: text + text[-1] for index, text in enumerate(prompts)}


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_are_shown_where_they_are_asked_for(client: httpx.Client, stream: bool) -> None:
    response = post(client, prompt="hi", max_tokens=2, return_token_ids=True, stream=stream)
    answers = events(response) if stream else [response.json()]
    choices = [answer["choices"][0] for answer in answers]
    assert [choice.get("prompt_token_ids") for choice in choices] == [
        [BOS, 104, 105],
        *[None] * (len(choices) - 1),
    ]
    assert [token for choice in choices for token in choice["token_ids"]] == [104, 105]
    assert "token_ids" not in post(client).json()["choices"][0]


def test_usage_in_every_chunk_is_its_choices_own(client: httpx.Client) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    chunks = events(
        post(client, prompt=["a", "xyz"], max_tokens=2, stream=True, stream_options=options)
    )
    *pieces, last = [
        (chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]) for chunk in chunks
    ]
    assert sorted(pieces) == [(2, 1), (2, 2), (4, 1), (4, 2)]
    assert last == (6, 4)


def test_text_that_cannot_fit_the_context_is_refused(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.tokenizer.most_characters = 1000
    error = post(client, prompt="x" * 1001).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    messages = [{"role": "user", "content": "x" * 1001}]
    error = client.post("/v1/chat/completions", json={"messages": messages}).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert engine.added.empty()
