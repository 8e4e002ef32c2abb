from __future__ import annotations

import json
import logging
import socket

import httpx
import openai
import pytest

from headway.errors import EngineDead, InvalidRequest, QueueFull, RequestTooLarge
from server.fake_engine import FakeEngine, delta
from server.serving import MODEL, TIMEOUT_S


def post(client: httpx.Client, **body: object) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "hello"} | body)


def error_of(response: httpx.Response) -> dict[str, object]:
    """The error, its shape checked."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert "Traceback" not in response.text
    return body["error"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"prompt": "a" 1}', "byte 15"),
        (b'{"prompt": "a"', "of 14 bytes"),
        (b"", "of 0 bytes"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b'{"prompt": "a", "metadata": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "a", "metadata": ' + b"[" * 64 + b"]" * 64 + b"}", "nested too deeply"),
        (b'\xef\xbb\xbf{"prompt": "a"}', "byte 0"),
    ],
)
def test_malformed_json_says_where(client: httpx.Client, body: bytes, where: str) -> None:
    response = client.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert where in str(error_of(response)["message"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"prompt": "\ud800"}', "prompt"),
        (rb'{"prompt": ["good", "a\udc00b"]}', "prompt[1]"),
        (b'{"prompt": "\xed\xa0\x80"}', "prompt"),
        (rb'{"prompt": "a", "metadata": {"k": ["\ud83d"]}}', "metadata.k[0]"),
        (rb'{"prompt": "a", "metadata": {"\ud83d": 1}}', "metadata"),
        (b'{"prompt": "a", "top_p": NaN}', "top_p"),
        (b'{"prompt": "a", "logit_bias": {"3": -Infinity}}', "logit_bias.3"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature"),
    ],
)
def test_what_json_cannot_say_is_named(client: httpx.Client, body: bytes, param: str) -> None:
    response = client.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_brackets_in_strings_are_no_depth(client: httpx.Client) -> None:
    body = {"prompt": "[{" * 100 + "\\", "metadata": [[[{}]]] * 100}
    assert client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_tokens": "7"}, "max_tokens", "max_tokens: Expected `int | null`, got `str`"),
        ({"stop": ["a", 1]}, "stop[1]", "stop[1]: Expected `str`, got `int`"),
        ({"prompt": [[1], ["x"]]}, "prompt[1][0]", "prompt[1][0]: Expected `int`, got `str`"),
        ({"colour": 1}, "colour", "colour: is not a field that this server supports"),
        (
            {"stream": True, "stream_options": {"x": 1}},
            "stream_options.x",
            "stream_options.x: is not a field that this server supports",
        ),
        ({"n": 0}, "n", "n: must be between 1 and 128, not 0"),
        ({"n": True}, "n", "n: Expected `int | null`, got `bool`"),
        (
            {"n": 2, "temperature": 0},
            "n",
            "n: 2 greedy completions are all the same; n must be 1",
        ),
        ({"best_of": 3, "n": 2}, "best_of", "best_of: 3 is not n (2)"),
        ({"echo": 1}, "echo", "echo: Expected `bool | null`, got `int`"),
        (
            {"echo": True, "logprobs": 1, "n": 2, "stream": True},
            "echo",
            "echo: with logprobs in a stream, n must be 1",
        ),
        (
            {"echo": True, "logprobs": 1, "prompt_logprobs": 2},
            "prompt_logprobs",
            "prompt_logprobs: echo shows 1 already (logprobs); leave it out",
        ),
        (
            {"queue_timeout_ms": 0},
            "queue_timeout_ms",
            "queue_timeout_ms: must be between 1 and 86400000, not 0",
        ),
        (
            {"spaces_between_special_tokens": False},
            "spaces_between_special_tokens",
            "spaces_between_special_tokens: false is not supported (only null and true)",
        ),
        ({"logprobs": -2}, "logprobs", "logprobs: must be at least -1, not -2"),
        (
            {"prompt_logprobs": 0, "stream": True},
            "prompt_logprobs",
            "prompt_logprobs: come with a whole answer; stream must be off",
        ),
        ({"suffix": "x"}, "suffix", 'suffix: "x" is not supported (only null)'),
        (
            {"logit_bias": {"five": 1}},
            "logit_bias",
            "logit_bias: Expected `int`, got `str`",
        ),
        (
            {"logit_bias": {"5": 101}},
            "logit_bias",
            "logit_bias: must be between -100 and 100, not 101.0",
        ),
        (
            {"presence_penalty": 2.5},
            "presence_penalty",
            "presence_penalty: must be between -2 and 2, not 2.5",
        ),
        ({"top_p": 1.5}, "top_p", "top_p: must be between 0 and 1, not 1.5"),
        ({"prompt": []}, "prompt", "prompt: is an empty list"),
        (
            {"prompt": ["x"] * 2049},
            "prompt",
            "prompt: holds 2049 prompts; at most 2048 go together",
        ),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options: needs stream to be true",
        ),
    ],
)
def test_a_wrong_field_is_named(
    client: httpx.Client, body: dict[str, object], param: str, message: str
) -> None:
    response = post(client, **body)
    assert response.status_code == 400
    assert error_of(response) == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


def test_a_mixture_of_prompts_is_refused(client: httpx.Client) -> None:
    for prompt in (["a", 1], [[1], 2], ["a", [1]]):
        error = error_of(post(client, prompt=prompt))
        assert error["param"] == "prompt"
        assert "not a mixture" in str(error["message"])


def test_a_missing_prompt_and_a_body_that_is_no_object_are_refused(client: httpx.Client) -> None:
    error = error_of(client.post("/v1/completions", json={"model": MODEL}))
    assert (error["param"], error["message"]) == ("prompt", "prompt: is required")
    error = error_of(client.post("/v1/completions", json=[1]))
    assert error["message"] == "the body: Expected `object`, got `array`"


def test_the_content_type_does_not_matter(client: httpx.Client) -> None:
    headers = {"content-type": "text/plain"}
    response = client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert response.status_code == 200


def test_another_model_is_not_found(client: httpx.Client, openai_client: openai.OpenAI) -> None:
    response = post(client, model="gpt-5")
    assert response.status_code == 404
    error = error_of(response)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert MODEL in str(error["message"])
    with pytest.raises(openai.NotFoundError) as raised:
        openai_client.completions.create(model="gpt-5", prompt="hello")
    assert raised.value.code == "model_not_found"


def test_an_unknown_route_is_404_and_a_wrong_method_405(client: httpx.Client) -> None:
    response = client.get("/v1/nothing")
    assert (response.status_code, error_of(response)["message"]) == (
        404,
        "There is nothing at /v1/nothing.",
    )
    response = client.get("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert error_of(response)["message"] == "/v1/completions does not take GET."


def test_a_body_over_the_limit_is_413_before_it_is_sent(client: httpx.Client) -> None:
    address = (client.base_url.host, client.base_url.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {2**25 + 1}\r\n\r\n"
    with socket.create_connection(address, TIMEOUT_S) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer


def test_a_body_that_grows_over_the_limit_is_413(client: httpx.Client) -> None:
    response = client.post("/v1/completions", content=(b" " * 2**20 for _ in range(33)))
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("length", "code"), [(100, "context_length_exceeded"), (3, "request_too_large")]
)
def test_what_is_too_large_says_in_what_way(
    client: httpx.Client, engine: FakeEngine, length: int, code: str
) -> None:
    engine.refusal = RequestTooLarge("prompt", "the numbers")
    response = post(client, prompt=[1] * length)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["message"], error["param"], error["code"]) == (
        "prompt: the numbers",
        "prompt",
        code,
    )


def test_more_tokens_than_the_model_takes_never_reach_the_engine(
    client: httpx.Client, engine: FakeEngine
) -> None:
    response = post(client, prompt=[[1], [1] * (engine.model.max_model_len + 1)])
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"] == "prompt: 101 tokens are more than max_model_len (100)"
    assert engine.added.empty()


def test_a_conversation_that_is_too_long_is_the_messages_fault(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.refusal = RequestTooLarge("prompt", "the numbers")
    messages = [{"role": "user", "content": "x" * 100}]
    error = error_of(client.post("/v1/chat/completions", json={"messages": messages}))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


def test_what_the_engine_refuses_is_a_400(client: httpx.Client, engine: FakeEngine) -> None:
    engine.refusal = InvalidRequest("stop_token_ids", "token 9 is not in the vocabulary")
    response = post(client)
    assert response.status_code == 400
    assert error_of(response)["param"] == "stop_token_ids"


@pytest.mark.parametrize(("seconds", "header"), [(1.2, "2"), (0.1, "1"), (0.0, "1"), (None, "1")])
def test_a_full_queue_is_429_with_the_time_to_come_back(
    client: httpx.Client, engine: FakeEngine, seconds: float | None, header: str
) -> None:
    engine.refusal = QueueFull("3 requests are waiting", seconds)
    response = post(client)
    assert response.status_code == 429
    assert response.headers.get("retry-after") == header
    assert error_of(response)["type"] == "rate_limit_error"


def test_a_full_queue_costs_no_tokenising(client: httpx.Client, engine: FakeEngine) -> None:
    engine.full = QueueFull("3 requests are waiting", None)
    assert post(client).status_code == 429
    assert engine.model.tokenizer.texts == []


def test_room_is_asked_for_every_completion(client: httpx.Client, engine: FakeEngine) -> None:
    assert post(client, prompt=["a", "b", "c"], n=2, temperature=1.0).status_code == 200
    assert post(client).status_code == 200
    assert engine.asked_room == [6, 1]


@pytest.mark.parametrize(("seconds", "header"), [(1.2, "2"), (None, None)])
def test_a_lost_engine_says_when_another_is_there(
    client: httpx.Client, engine: FakeEngine, seconds: float | None, header: str | None
) -> None:
    engine.full = EngineDead("the engine has stopped", seconds)
    response = post(client)
    assert (response.status_code, error_of(response)["code"]) == (503, "engine_dead")
    assert response.headers.get("retry-after") == header


def test_a_dead_engine_is_503(client: httpx.Client, engine: FakeEngine) -> None:
    engine.is_alive = False
    response = post(client)
    assert response.status_code == 503
    assert error_of(response)["code"] == "engine_dead"


def test_what_nobody_foresaw_is_500_and_logged(
    client: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refusal = KeyError("a secret")
    with caplog.at_level(logging.ERROR):
        response = post(client)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert error_of(response)["type"] == "server_error"
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (delta(finish="error", error="NaN logits"), 500, "generation_failed"),
        (delta(finish="abort"), 503, "engine_dead"),
        (delta(finish="timeout"), 503, "queue_timeout"),
        (EngineDead("gone"), 503, "engine_dead"),
    ],
)
def test_an_end_before_the_first_byte_is_a_status(
    client: httpx.Client, engine: FakeEngine, end: object, status: int, code: str, stream: bool
) -> None:
    engine.script = lambda request: [end]
    response = post(client, stream=stream)
    assert (response.status_code, error_of(response)["code"]) == (status, code)


@pytest.mark.parametrize(
    ("fields", "names", "param"),
    [
        (("bad_words", "min_tokens"), "bad_words, min_tokens", "bad_words"),
        (("structured_outputs",), "structured_outputs", "structured_outputs"),
    ],
)
def test_what_a_request_forbids_itself_is_its_own_fault(
    client: httpx.Client, engine: FakeEngine, fields: tuple[str, ...], names: str, param: str
) -> None:
    end = delta(finish="error", error="leave no token", fields=fields)
    engine.script = lambda request: [end]
    for stream in (False, True):
        response = post(client, stream=stream)
        assert response.status_code == 400
        assert error_of(response) == {
            "message": f"{names}: leave no token",
            "type": "invalid_request_error",
            "param": param,
            "code": None,
        }
    engine.script = lambda request: [delta("a"), end]
    *_, last = [line for line in post(client, stream=True).text.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"] == error_of(response)


def test_an_error_says_why(client: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [delta(finish="error", error="NaN logits")]
    assert error_of(post(client))["message"] == "NaN logits"


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), delta(finish="error", error="NaN logits")]
    response = post(client, stream=True)
    assert response.status_code == 200
    *_, last = [line for line in response.text.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "NaN logits"


def test_openai_python_raises_an_error_in_the_middle_of_a_stream(
    openai_client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = lambda request: [delta("a"), delta(finish="error", error="NaN logits")]
    stream = openai_client.completions.create(model=MODEL, prompt="hello", stream=True)
    assert next(stream).choices[0].text == "a"
    with pytest.raises(openai.APIError, match="NaN logits"):
        next(stream)


def test_one_failed_prompt_of_several_ends_the_others(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = lambda request: (
        [delta("a"), delta(finish="error", error="bad")]
        if request.request_id.endswith("-0")
        else [delta("b") for _ in range(10)]
    )
    assert post(client, prompt=["x", "y"]).status_code == 500
    assert engine.aborted.get(timeout=TIMEOUT_S).endswith("-1")
    assert engine.aborted.empty()
