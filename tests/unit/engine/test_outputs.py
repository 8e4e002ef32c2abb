from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, TokenLogprobs
from headway.core.request import FinishReason, Request
from headway.core.scheduler import Update
from headway.engine.outputs import (
    Logprob,
    NewRequest,
    OutputDelta,
    OutputProcessor,
    RequestOutput,
    fan_out,
)
from headway.errors import InvalidRequest

EOS = 0


class Letters:
    """Token n is the n-th letter; 0 is special."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == EOS else chr(ord("a") + token_id - 1).encode()

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode()

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [27 if c == " " else ord(c) - ord("a") + 1 for c in text if c != "-"]


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


def test_what_ends_the_output_is_part_of_it_where_that_is_asked_for(
    run: Callable[..., list[OutputDelta]],
) -> None:
    wanted = {"include_stop_str_in_output": True}
    assert texts(run("abcdx", None, stop=["cd"], **wanted)) == ["a", "b", "", "cd"]
    last = run("abc", FinishReason.STOP, stop_token_ids=[3], **wanted)[-1]
    assert (last.text, last.stop_reason) == ("c", 3)
    assert run("a.", FinishReason.STOP, **wanted)[-1].text == ""
    shown = run("a.", FinishReason.STOP, skip_special_tokens=False, **wanted)[-1]
    assert (shown.text, shown.stop_reason) == ("<end>", None)


def test_a_stop_token_completes_no_stop_string(run: Callable[..., list[OutputDelta]]) -> None:
    wanted = {"include_stop_str_in_output": True}
    last = run("abc", FinishReason.STOP, stop=["bc"], stop_token_ids=[3], **wanted)[-1]
    assert (last.text, last.stop_reason) == ("bc", 3)


def test_marks_are_text_where_they_are_not_skipped(run: Callable[..., list[OutputDelta]]) -> None:
    marks = {"ignore_eos": True, "max_tokens": 3}
    assert texts(run("a.b", FinishReason.LENGTH, **marks)) == ["a", "", "b"]
    shown = run("a.b", FinishReason.LENGTH, skip_special_tokens=False, **marks)
    assert texts(shown) == ["a", "<end>", "b"]


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


def test_log_probabilities_go_with_their_tokens() -> None:
    processor = OutputProcessor(Letters())  # type: ignore[arg-type]
    request = Request("r", [1, 2], SamplingParams(logprobs=0, prompt_logprobs=0), arrival_s=0)
    processor.add(request)
    row = TokenLogprobs(2, -0.5, 1, ())
    first = processor.process(Update(request, None, None, prompt_logprobs=(row,)))
    assert (first.token_ids, first.text, first.finish_reason) == ((), "", None)
    assert (first.logprobs, first.prompt_logprobs) == ((), (row,))
    request.token_ids.append(2)
    second = processor.process(Update(request, 2, None, logprobs=row))
    assert (second.token_ids, second.logprobs, second.prompt_logprobs) == ((2,), (row,), ())


def test_bad_words_are_cut_into_tokens_as_a_text_begins_and_after_a_space() -> None:
    processor = OutputProcessor(Letters())  # type: ignore[arg-type]
    assert processor.bad_words(SamplingParams(bad_words=["ab", " c", "ab"])) == (
        (1, 2),
        (27, 1, 2),
        (27, 3),
    )
    assert processor.bad_words(SamplingParams()) == ()
    with pytest.raises(InvalidRequest, match="bad_words: '-' comes to no token"):
        processor.bad_words(SamplingParams(bad_words=["-"]))


def test_each_of_n_completions_is_a_request_that_differs_in_its_index() -> None:
    new = NewRequest("r", [1, 2], SamplingParams(n=3, seed=5, prompt_logprobs=1), 2, "salt")
    first, second, third, other, _, _ = fan_out([new, replace(new, request_id="s")])
    assert [one.request_id for one in (first, second, third)] == ["r-0", "r-1", "r-2"]
    assert [one.index for one in (first, second, third)] == [0, 1, 2]
    assert first.params == SamplingParams(seed=5, prompt_logprobs=1)
    assert second.params == third.params == SamplingParams(seed=5)
    assert (third.prompt_token_ids, third.priority, third.cache_salt) == ([1, 2], 2, "salt")
    assert (other.request_id, other.params) == ("s-0", first.params)
    assert other.params is first.params  # what is done once for params is done once for all
    one = NewRequest("r", [1], SamplingParams())
    assert fan_out([one]) == [one]


def test_a_request_output_gathers_its_completions_and_their_log_probabilities() -> None:
    letters: Any = Letters()
    new = NewRequest("r", [1, 2], SamplingParams(n=2, logprobs=1, prompt_logprobs=0))
    output = RequestOutput.of(new, "ab")
    row = TokenLogprobs(3, -2.0, 4, ((1, -0.5), (3, -2.0)))
    rare = TokenLogprobs(2, -1.0, 2, ())
    output.add(0, OutputDelta("r-0", "", (), None, prompt_logprobs=(rare,)), letters)
    output.add(0, OutputDelta("r-0", "c", (3,), "length", None, 1, logprobs=(row,)), letters)
    assert not output.finished
    output.add(1, OutputDelta("r-1", "", (), "error", None, 2, ChunkError("it broke")), letters)
    assert output.finished
    assert (output.num_cached_tokens, output.error) == (1, "it broke")
    assert output.prompt_logprobs == [None, {2: Logprob(-1.0, 2, "b")}]
    first, second = output.outputs
    assert first.logprobs == [{3: Logprob(-2.0, 4, "c"), 1: Logprob(-0.5, 1, "a")}]
    assert list(first.logprobs[0]) == [3, 1]
    assert first.cumulative_logprob == -2.0
    assert (second.index, second.logprobs, second.finish_reason) == (1, [], "error")


def test_without_being_asked_there_are_no_log_probabilities() -> None:
    output = RequestOutput.of(NewRequest("r", [1], SamplingParams()), None)
    assert output.prompt_logprobs is None
    assert (output.outputs[0].logprobs, output.outputs[0].cumulative_logprob) == (None, None)
