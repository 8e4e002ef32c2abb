"""Streams of chunks, as servers send them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.load import Outcome
from headway.bench.openai import Api, StreamReader, complaint
from headway.workload import WorkItem
from scripted_server import token, usage


def read(*pieces: tuple[float, bytes]) -> Outcome:
    outcome = Outcome(WorkItem("a", 0.0, (), 4), 0.0)
    reader = StreamReader(outcome)
    for now, data in pieces:
        reader.feed(data, now)
    reader.end()
    return outcome


def event(data: object) -> bytes:
    return b"data: %b\n\n" % (data if isinstance(data, bytes) else json.dumps(data).encode())


def chat(**delta: object) -> dict[str, object]:
    finish = delta.pop("finish_reason", None)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


DONE = event(b"[DONE]")
WHOLE = event(token(" Pä")) + event(token("ris")) + event(usage(5, 2, cached=3)) + DONE


@settings(deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_a_stream_reads_the_same_however_it_is_cut(cuts: list[int]) -> None:
    ends = sorted({*cuts, len(WHOLE)})
    begins = [0, *ends]
    outcome = read(*((1.0, WHOLE[a:b]) for a, b in zip(begins, ends, strict=False)))
    assert outcome.error is None
    assert outcome.texts == [" Pä", "ris"]
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens) == (5, 2, 3)


def test_chunks_have_the_times_they_came_at() -> None:
    outcome = read(
        (1.0, event(token())), (2.5, event(token()) + event(token(finish="stop"))), (9.0, DONE)
    )
    assert outcome.chunk_times_s == [1.0, 2.5, 2.5]


def test_the_tokens_of_an_answer_are_kept_where_they_are_told() -> None:
    told = [token(), token(finish="stop")]
    told[0]["choices"][0]["token_ids"] = [5, 6]
    told[1]["choices"][0]["token_ids"] = [7]
    assert read((1.0, b"".join(map(event, told)))).answer_ids == [5, 6, 7]
    assert read((1.0, WHOLE)).answer_ids == []


def test_a_chat_begins_with_its_first_content_and_ends_with_its_last() -> None:
    outcome = read(
        (0.1, event(chat(role="assistant", content=""))),
        (1.0, event(chat(content="Hel"))),
        (1.5, event(chat(content="lo"))),
        (2.0, event(chat(finish_reason="stop"))),
        (2.0, DONE),
    )
    assert outcome.chunk_times_s == [1.0, 1.5]
    assert outcome.texts == ["Hel", "lo"]


def test_reasoning_is_output_too() -> None:
    outcome = read(
        (1.0, event(chat(reasoning_content="hm"))),
        (2.0, event(chat(reasoning="hm"))),
        (3.0, event(chat(content="yes", finish_reason="stop"))),
    )
    assert outcome.chunk_times_s == [1.0, 2.0, 3.0]
    assert outcome.said == "yes"


def test_a_token_without_text_counts_and_an_empty_end_does_not() -> None:
    outcome = read(
        (1.0, event(token(""))), (2.0, event(token("a"))), (3.0, event(token("", "length")) + DONE)
    )
    assert outcome.chunk_times_s == [1.0, 2.0]


def test_comments_other_fields_and_line_ends_of_any_kind_are_passed_over() -> None:
    data = b": ping\n\nevent: x\r\nid: 5\r\ndata:" + json.dumps(token()).encode() + b"\r\n\r\n"
    assert read((1.0, data), (2.0, b"data:[DONE]\r\n\r\n")).chunk_times_s == [1.0]


def test_a_finish_reason_is_an_end_without_a_mark_for_it() -> None:
    assert read((1.0, event(token(finish="length")))).error is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (event(token()), "the stream ended before the answer was complete"),
        (b"", "the stream ended before the answer was complete"),
        (DONE, "the answer has no token"),
        (event(token()) + event(b"{broken"), "no chunk of a completion: "),
        (event(token()) + event(b'"text"'), "no chunk of a completion: Expected `object`"),
        (event(token()) + event({"error": {"message": "out\nof luck", "code": 5}}), "out of luck"),
        (event({"error": "plainly"}), "plainly"),
        (event({"object": "error", "message": "vLLM's older form"}), "vLLM's older form"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(data: bytes, message: str) -> None:
    outcome = read((1.0, data))
    assert outcome.error is not None
    assert outcome.error.startswith(message)


def test_nothing_after_an_error_heals_it() -> None:
    outcome = read((1.0, event({"error": "no"}) + WHOLE))
    assert (outcome.error, outcome.texts) == ("no", [])


def test_bodies() -> None:
    completions = Api("completions", "/v1/completions", "m", {"ignore_eos": True})
    assert json.loads(completions.body((5, 6), 7, stream=True)) == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    chat_api = Api("chat", "/v1/chat/completions", "m", {"max_completion_tokens": 9})
    assert json.loads(chat_api.body("hello", 7, stream=False)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 9,
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no room"}}', "no room"),
        (b'{"detail": "x"}', '{"detail": "x"}'),
        (b"<html>\n502", "<html> 502"),
        (b"\xff" * 1000, "\ufffd" * 300 + "…"),
        (b"", ""),
    ],
)
def test_complaints_are_short_and_in_one_line(body: bytes, said: str) -> None:
    assert complaint(body) == said
