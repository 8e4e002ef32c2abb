"""`/tokenize`, `/detokenize` and `/tokenizer_info`."""

from __future__ import annotations

import httpx
import pytest

from server.fake_engine import BOS, FakeEngine
from server.serving import MODEL

MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_text_comes_to_its_tokens(client: httpx.Client) -> None:
    for body in ({}, {"model": MODEL}, {"add_special_tokens": True, "return_token_strs": False}):
        answer = client.post("/tokenize", json={"prompt": "hi"} | body).json()
        assert answer == {
            "count": 3,
            "max_model_len": 100,
            "tokens": [BOS, 104, 105],
            "token_strs": None,
        }


def test_bos_is_left_out_and_the_texts_are_shown_where_asked(client: httpx.Client) -> None:
    body = {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True}
    answer = client.post("/tokenize", json=body).json()
    assert (answer["tokens"], answer["token_strs"]) == ([104, 105], ["h", "i"])


def test_a_conversation_comes_to_the_tokens_of_its_prompt(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = {"messages": MESSAGES, "return_token_strs": True}
    answer = client.post("/tokenize", json=body).json()
    client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert answer["tokens"] == engine.added.get_nowait().prompt_token_ids
    assert "".join(answer["token_strs"]) == "<user>hi<assistant>"
    assert answer["count"] == len(answer["tokens"])


def test_a_text_longer_than_the_context_is_tokenised(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"prompt": "x" * 20_000}).json()["count"] == 20_001


def test_tokens_come_to_their_text_marks_and_all(client: httpx.Client) -> None:
    answer = client.post("/detokenize", json={"model": MODEL, "tokens": [BOS, 104, 105]}).json()
    assert answer == {"prompt": "\x01hi"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_the_tokenizer_tells_what_a_client_needs_to_use_it(
    client: httpx.Client, engine: FakeEngine
) -> None:
    assert engine.model.chat_template is not None
    assert client.get("/tokenizer_info").json() == {
        "tokenizer_class": "HeadwayTokenizer",
        "vocab_size": 0x110000,
        "model_max_length": 100,
        "bos_token": "\x01",
        "eos_token": "\x02",
        "pad_token": None,
        "bos_token_id": BOS,
        "eos_token_ids": [2],
        "chat_template": engine.model.chat_template.source,
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": "hi"}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": MESSAGES, "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [0x110000]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**64]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [5], "model": "other"}, 404, "model"),
    ],
)
def test_what_is_wrong_is_named(
    client: httpx.Client, path: str, body: dict[str, object], status: int, param: str
) -> None:
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_what_is_wrong_with_a_conversation_is_named_as_the_body_calls_it(
    client: httpx.Client,
) -> None:
    body = {"messages": MESSAGES, "max_completion_tokens": -1}
    answer = client.post("/tokenize", json=body)
    assert answer.json()["error"]["param"] == "max_completion_tokens"
