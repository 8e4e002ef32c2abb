from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.core.params import SamplingParams
from headway.core.request import FinishReason, Request
from headway.core.scheduler import Update
from headway.engine.outputs import OutputDelta, OutputProcessor

EOS = 0


class Letters:
    """Token n is the n-th letter; 0 is special."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == EOS else chr(ord("a") + token_id - 1).encode()

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS


@pytest.fixture
def run() -> Callable[..., list[OutputDelta]]:
    """Feeds an output of letters, the last with the scheduler's reason, and gives the deltas."""

    def feed(text: str, reason: FinishReason | None, **params: Any) -> list[OutputDelta]:
        processor = OutputProcessor(Letters())  # type: ignore[arg-type]
        request = Request("r", [1], SamplingParams(**params), arrival_s=0, eos_token_ids=[EOS])
        processor.add(request)
        deltas = []
        for index, letter in enumerate(text):
            token = EOS if letter == "." else ord(letter) - ord("a") + 1
            request.token_ids.append(token)
            last = index == len(text) - 1
            deltas.append(processor.process(Update(request, token, reason if last else None)))
            if deltas[-1].finish_reason is not None:
                break
        return deltas

    return feed


def texts(deltas: list[OutputDelta]) -> list[str]:
    return [delta.text for delta in deltas]


def test_text_comes_as_the_tokens_do(run: Callable[..., list[OutputDelta]]) -> None:
    deltas = run("abc", FinishReason.LENGTH)
    assert texts(deltas) == ["a", "b", "c"]
    assert [delta.token_ids for delta in deltas] == [(1,), (2,), (3,)]
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]


def test_a_stop_string_is_held_back_and_cut(run: Callable[..., list[OutputDelta]]) -> None:
    deltas = run("abcde", FinishReason.LENGTH, stop=["cd"])
    assert texts(deltas) == ["a", "b", "", ""]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "cd")


def test_what_was_held_back_comes_out_at_the_end(run: Callable[..., list[OutputDelta]]) -> None:
    assert texts(run("abc", FinishReason.LENGTH, stop=["cd"])) == ["a", "b", "c"]
    assert texts(run("abc.", FinishReason.STOP, stop=["cd"])) == ["a", "b", "", "c"]


def test_a_stop_string_at_the_last_token_is_why_it_ends(
    run: Callable[..., list[OutputDelta]],
) -> None:
    last = run("abcd", FinishReason.LENGTH, stop=["cd"])[-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", "cd")


def test_the_end_of_sequence_has_no_text_and_no_stop_reason(
    run: Callable[..., list[OutputDelta]],
) -> None:
    last = run("ab.", FinishReason.STOP)[-1]
    assert (last.text, last.token_ids, last.finish_reason) == ("", (EOS,), "stop")
    assert last.stop_reason is None


def test_a_stop_token_is_its_own_stop_reason(run: Callable[..., list[OutputDelta]]) -> None:
    last = run("abc", FinishReason.STOP, stop_token_ids=[3])[-1]
    assert (last.text, last.stop_reason, last.token_ids) == ("", 3, (3,))


def test_stop_strings_do_not_count_before_min_tokens(
    run: Callable[..., list[OutputDelta]],
) -> None:
    deltas = run("ababab", FinishReason.LENGTH, stop=["ab"], min_tokens=3)
    assert "".join(texts(deltas)) == "ab"
    assert len(deltas) == 4
    assert deltas[-1].finish_reason == "stop"


def test_a_request_ended_from_outside_gives_out_what_was_held_back() -> None:
    processor = OutputProcessor(Letters())  # type: ignore[arg-type]
    request = Request("r", [1], SamplingParams(stop="bx"), arrival_s=0)
    processor.add(request)
    request.token_ids.append(2)
    assert processor.process(Update(request, 2, None)).text == ""
    ended = processor.end("r", FinishReason.ABORT)
    assert ended is not None
    assert (ended.text, ended.finish_reason) == ("b", "abort")
    assert processor.end("r", FinishReason.ABORT) is None
