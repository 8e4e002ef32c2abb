"""Log-probabilities, `n` and the model's own sampling defaults, as the API shows them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from headway.core.plan import TokenLogprobs
from headway.engine.outputs import NewRequest
from headway.server.api.logprobs import TextOffsets
from server.fake_engine import FakeEngine, delta
from server.serving import MODEL

H = TokenLogprobs(ord("H"), -0.5, 1, ((ord("H"), -0.5), (ord("J"), -1.5)))
I_SECOND = TokenLogprobs(ord("i"), -2.0, 2, ((ord("o"), -0.25),))
IMPOSSIBLE = TokenLogprobs(ord("z"), float("-inf"), 99, ())
MESSAGES: Any = [{"role": "user", "content": "Say hi"}]


@pytest.fixture(autouse=True)
def script(engine: FakeEngine) -> None:
    def answer(request: NewRequest) -> list[object]:
        wanted = request.params.logprobs is not None
        prompt = (I_SECOND, IMPOSSIBLE) if request.params.prompt_logprobs is not None else ()
        return [
            delta("H", logprobs=(H,) if wanted else (), prompt_logprobs=prompt),
            # Its text is held back, its log-probability is not.
            delta("", tokens=[ord("i")], logprobs=(I_SECOND,) if wanted else ()),
            delta("i", tokens=[], finish="length"),
        ]

    engine.script = answer


def test_completions_have_parallel_lists_with_the_token_itself_in_each_map(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    answer = openai_client.completions.create(model=MODEL, prompt="x", logprobs=2)
    shown = answer.choices[0].logprobs
    assert shown is not None
    assert shown.tokens == ["H", "i"]
    assert shown.token_logprobs == [-0.5, -2.0]
    assert shown.text_offset == [0, 1]
    assert shown.top_logprobs == [{"H": -0.5, "J": -1.5}, {"i": -2.0, "o": -0.25}]
    assert engine.added.get_nowait().params.logprobs == 2


def test_completions_with_logprobs_0_show_the_tokens_own(client: httpx.Client) -> None:
    body = {"prompt": "x", "logprobs": 0}
    [choice] = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -2.0]
    without = client.post("/v1/completions", json={"prompt": "x"}).json()["choices"][0]
    assert without["logprobs"] is None
    assert "prompt_logprobs" not in without


def test_chat_shows_tokens_with_their_bytes(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    shown = answer.choices[0].logprobs
    assert shown is not None
    assert shown.content is not None
    assert [(t.token, t.logprob, t.bytes) for t in shown.content] == [
        ("H", -0.5, [72]),
        ("i", -2.0, [105]),
    ]
    assert [(t.token, t.logprob) for t in shown.content[0].top_logprobs] == [
        ("H", -0.5),
        ("J", -1.5),
    ]
    assert engine.added.get_nowait().params.logprobs == 2


def test_chat_without_top_logprobs_asks_for_the_tokens_own_alone(
    client: httpx.Client, engine: FakeEngine
) -> None:
    client.post("/v1/chat/completions", json={"messages": MESSAGES, "logprobs": True})
    client.post("/v1/chat/completions", json={"messages": MESSAGES, "logprobs": False})
    assert [engine.added.get_nowait().params.logprobs for _ in range(2)] == [0, None]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_shows_each_token_once_though_its_text_is_held_back(
    client: httpx.Client, route: str
) -> None:
    chat = "chat" in route
    asked = {"messages": MESSAGES, "logprobs": True} if chat else {"prompt": "x", "logprobs": 1}
    text = client.post(route, json={**asked, "stream": True}).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    shown = [json.loads(line)["choices"][0]["logprobs"] for line in lines[:-1]]
    if chat:
        tokens = [[t["token"] for t in item["content"]] for item in shown if item]
        assert shown[0] is None  # the role
    else:
        tokens = [item["tokens"] for item in shown]
        assert [item["text_offset"] for item in shown] == [[0], [1], []]
    assert tokens == [["H"], ["i"], []]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_prompt_logprobs_are_vllms_and_what_json_cannot_say_is_minus_9999(
    client: httpx.Client, route: str
) -> None:
    chat = "chat" in route
    asked = {"messages": MESSAGES} if chat else {"prompt": "abc"}
    answer = client.post(route, json={**asked, "prompt_logprobs": 1}).json()
    first, second, third = (answer if chat else answer["choices"][0])["prompt_logprobs"]
    assert first is None
    assert second == {
        str(ord("o")): {"logprob": -0.25, "rank": 1, "decoded_token": "o"},
        str(ord("i")): {"logprob": -2.0, "rank": 2, "decoded_token": "i"},
    }
    assert third == {str(ord("z")): {"logprob": -9999.0, "rank": 99, "decoded_token": "z"}}


def test_n_gives_as_many_choices_of_each_prompt_and_counts_a_prompt_once(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    answer = openai_client.completions.create(
        model=MODEL,
        prompt=["ab", "c"],
        n=3,
        best_of=3,
        seed=7,
        extra_body={"prompt_logprobs": 0},
    )
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert {choice.text for choice in answer.choices} == {"Hi"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3 + 2, 6 * 2)
    added = [engine.added.get_nowait() for _ in range(6)]
    assert [request.index for request in added] == [0, 1, 2, 0, 1, 2]
    assert len({request.request_id for request in added}) == 6
    assert {request.params.n for request in added} == {1}
    assert [request.params.prompt_logprobs for request in added] == [0, None, None] * 2


def test_every_completion_of_a_prompt_shows_the_prompts_log_probabilities(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "prompt_logprobs": 0}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [3] * 4


def test_prompts_times_n_are_bounded(client: httpx.Client) -> None:
    body = {"prompt": ["a"] * 20, "n": 103}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "n"
    assert error["message"] == "n: 103 completions of 20 prompts; at most 2048 go together"


def test_a_stream_of_n_tells_its_choices_apart(client: httpx.Client) -> None:
    body = {"messages": MESSAGES, "n": 2, "stream": True}
    text = client.post("/v1/chat/completions", json=body).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line][:-1]
    texts = {0: "", 1: ""}
    for line in lines:
        [choice] = json.loads(line)["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: "Hi", 1: "Hi"}


def test_the_models_own_defaults_hold_for_what_the_client_leaves_out(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.model.sampling_defaults = {"temperature": 0.25, "top_k": 64}
    client.post("/v1/completions", json={"prompt": "x", "top_k": 5})
    client.post("/v1/chat/completions", json={"messages": MESSAGES, "temperature": None})
    first, second = (engine.added.get_nowait().params for _ in range(2))
    assert (first.temperature, first.top_k, first.max_tokens) == (0.25, 5, 16)
    assert (second.temperature, second.top_k, second.max_tokens) == (0.25, 64, None)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_begins_with_the_prompts_tokens(
    client: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    # Its prompt is computed in two steps.
    engine.script = lambda request: [
        delta("", tokens=[], prompt_logprobs=(I_SECOND,)),
        delta("H", logprobs=(H,), prompt_logprobs=(IMPOSSIBLE,)),
        delta("", tokens=[ord("i")], logprobs=(I_SECOND,), finish="length"),
    ]
    body = {"prompt": [ord("a"), ord("i"), ord("z")], "echo": True, "logprobs": 1, "max_tokens": 2}
    response = client.post("/v1/completions", json=body | {"stream": stream})
    if stream:
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
        assert [choice["text"] for choice in choices] == ["aizH", ""]
    else:
        choices = response.json()["choices"]
        assert choices[0]["text"] == "aizH"
    shown = {
        name: [item for choice in choices for item in choice["logprobs"][name]]
        for name in choices[0]["logprobs"]
    }
    assert shown == {
        "tokens": ["a", "i", "z", "H", "i"],
        "text_offset": [0, 1, 2, 3, 4],
        "token_logprobs": [None, -2.0, -9999.0, -0.5, -2.0],
        "top_logprobs": [
            None,
            {"i": -2.0, "o": -0.25},
            {"z": -9999.0},
            {"H": -0.5, "J": -1.5},
            {"i": -2.0, "o": -0.25},
        ],
    }
    assert engine.added.get_nowait().params.prompt_logprobs == 1
    assert "prompt_logprobs" not in choices[0]


def test_an_echo_of_nothing_more_asks_for_no_token(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = lambda request: [
        delta("", tokens=[], prompt_logprobs=(I_SECOND,), finish="length")
    ]
    answer = openai_client.completions.create(
        model=MODEL, prompt="i", echo=True, logprobs=0, max_tokens=0
    )
    assert engine.added.get_nowait().params.max_tokens == 0
    assert answer.choices[0].text == "i"
    shown = answer.choices[0].logprobs
    assert shown is not None
    assert shown.tokens == ["\x01", "i"]
    # BOS was put before the text.
    assert shown.text_offset == [0, 0]
    assert shown.token_logprobs == [None, -2.0]


def test_a_token_within_a_character_begins_where_that_does() -> None:
    class Bytes:
        def token_bytes(self, token_id: int) -> bytes:
            return [b"a", b"\xc3", b"\xa9", b"b", b"<mark>"][token_id]

        def is_special(self, token_id: int) -> bool:
            return token_id == 4

    offsets = TextOffsets(Bytes(), 10)  # type: ignore[arg-type]
    assert [offsets.place(token) for token in (0, 1, 2, 4, 3)] == [10, 11, 11, 12, 12]
    assert offsets.end == 13
