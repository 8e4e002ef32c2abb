"""The table of `bad_input.py`, over the real engine: each row is answered as it says, another
stream goes on undisturbed beside it, and every block comes back."""

from __future__ import annotations

import json

import httpx
import msgspec
import pytest

from headway.server.api.body import decode
from server.anything import HALVES, AnythingEngine
from server.bad_chats import CHATS
from server.bad_input import GOOD, ROWS, Row
from server.bad_items import ITEMS
from server.bad_schemas import SCHEMAS
from server.bodies import STRUCTS
from tiny_grammar import TOKENS
from waiting import in_time

WITNESS = {"prompt": "witness", "max_tokens": 8, "seed": 7, "stream": True}


@pytest.fixture(scope="module")
def undisturbed(anything_client: httpx.Client) -> str:
    """What the witness says when it is alone."""
    return text_of(anything_client.post("/v1/completions", json=WITNESS).text)


def text_of(stream: str) -> str:
    *events, done = [event.removeprefix("data: ") for event in stream.split("\n\n") if event]
    assert done == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def send(anything_client: httpx.Client, path: str, body: bytes) -> httpx.Response:
    return anything_client.post(path, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    "row", [*ROWS, *CHATS, *ITEMS, *SCHEMAS], ids=lambda row: f"{row.path}: {row.name}"
)
def test_the_table(
    anything_client: httpx.Client, anything: AnythingEngine, undisturbed: str, row: Row
) -> None:
    with anything_client.stream("POST", "/v1/completions", json=WITNESS) as witness:
        response = send(anything_client, row.path, row.body())
        assert text_of(witness.read().decode()) == undisturbed
    assert response.status_code == row.status, response.text[:500]
    if row.status != 200:
        check_error(response, row.param)
    assert anything_client.get("/health").status_code == 200
    assert in_time(lambda: anything.kv.num_used == 0)


def check_error(response: httpx.Response, param: str | None) -> None:
    error = response.json()["error"]
    assert len(error["message"]) < 1000
    if param is None:
        return
    if "type" in response.json():  # Anthropic's shape has no place for a field
        assert param in error["message"]
    else:
        assert error["param"] == param


@pytest.mark.parametrize("echo", [False, True])
def test_a_prompt_that_ends_within_a_character_does_not_make_the_answer_half_of_one(
    anything_client: httpx.Client, echo: bool
) -> None:
    first, second = HALVES
    body = {"prompt": [TOKENS.index(b"{"), first], "max_tokens": 1, "echo": echo}
    before = "{\ufffd" if echo else ""
    # An answer that would go on with the character, and one that does not.
    for answer, text in ([second], "\ufffd"), ([TOKENS.index(b"b")], "b"):
        asked = body | {"allowed_token_ids": answer}
        whole = anything_client.post("/v1/completions", json=asked)
        assert whole.json()["choices"][0]["text"] == before + text
        stream = anything_client.post("/v1/completions", json=asked | {"stream": True})
        assert text_of(stream.text) == before + text


@pytest.mark.parametrize("path", STRUCTS)
def test_null_is_the_same_as_nothing_in_every_optional_field(
    anything_client: httpx.Client, path: str
) -> None:
    decoder = msgspec.json.Decoder(STRUCTS[path])
    fields = msgspec.inspect.type_info(STRUCTS[path]).fields  # type: ignore[attr-defined]
    optional = [field.encode_name for field in fields if not field.required]
    for field in optional:
        asked = {name: value for name, value in GOOD[path].items() if name != field}
        with_null = decode(json.dumps({**asked, field: None}).encode(), decoder)
        assert with_null == decode(json.dumps(asked).encode(), decoder), field
    response = anything_client.post(path, json={**GOOD[path], **dict.fromkeys(optional)})
    assert response.status_code == 200, response.text


def fields_of(path: str, *kinds: type[msgspec.inspect.Type]) -> list[str]:
    """Those that may be of one of these kinds."""
    return [
        field.encode_name
        for field in msgspec.inspect.type_info(STRUCTS[path]).fields  # type: ignore[attr-defined]
        if isinstance(field.type, kinds)
        or any(isinstance(kind, kinds) for kind in getattr(field.type, "types", ()))
    ]


@pytest.mark.parametrize("path", STRUCTS)
def test_what_is_no_number_is_none_for_any_float(anything_client: httpx.Client, path: str) -> None:
    for field in fields_of(path, msgspec.inspect.FloatType):
        for value in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400):
            good = json.dumps({k: v for k, v in GOOD[path].items() if k != field})
            body = good[:-1] + f', "{field}": {value}}}'
            response = send(anything_client, path, body.encode())
            assert response.status_code == 400, (field, value)
            check_error(response, field)


@pytest.mark.parametrize("path", STRUCTS)
def test_half_of_a_pair_is_no_character_in_any_string(
    anything_client: httpx.Client, path: str
) -> None:
    fields = fields_of(path, msgspec.inspect.StrType, msgspec.inspect.AnyType)
    assert fields
    for field in fields:
        body = json.dumps({**GOOD[path], field: "ab\ud83d"})
        response = send(anything_client, path, body.encode())
        assert response.status_code == 400, field
        check_error(response, field)
