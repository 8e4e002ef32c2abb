"""Prompts of text: what is too short for one, and what servers make of the words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headway.bench.prompts import WORDS, text_prompt
from headway.errors import HeadwayError, InvalidConfig
from headway.workload import Trace, Workload
from scripted_server import Asked, Reply
from unit.bench.test_serving import chat_server, load, run, steady, workload

FRAME = 7
"""Of `chat_server`."""
LENGTHS = (3, 7, 8, 20)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "trace.csv"
    rows = [f"2024-01-01 00:00:0{i},{length},3\n" for i, length in enumerate(LENGTHS)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return Trace(name="t", path=str(path))


@pytest.mark.parametrize("made_before_bytes", [64 << 20, 0])
def test_a_trace_goes_on_where_a_prompt_is_shorter_than_any_text_and_says_so(
    trace: Trace, made_before_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.bench.serving._MADE_BEFORE_BYTES", made_before_bytes)
    what = load(Workload(traces=(trace,)), text=True, num_warmups=1)
    measured, asked = run(chat_server, what, kind="chat", model="m")
    assert measured.result["traces"][0]["lengthened_inputs"] == 2
    assert measured.details["input_lens"] == [8, 8, 8, 20]
    assert (measured.result["completed"], measured.result["wrong_input_lens"]) == (4, 0)
    texts = [each.body["messages"][0]["content"] for each in asked if each.body.get("stream")]
    assert [len(text.split()) - 1 for text in texts[1:]] == [1, 1, 1, 13]


def test_a_trace_as_tokens_is_as_short_as_it_was(trace: Trace) -> None:
    measured, asked = run(steady, load(Workload(traces=(trace,))), model="m")
    assert [len(each.body["prompt"]) for each in asked] == list(LENGTHS)
    assert measured.result["traces"][0]["lengthened_inputs"] == 0


def test_a_class_that_asks_for_less_than_any_text_has_is_refused_before_anything_is_sent(
    trace: Trace,
) -> None:
    asked: list[Asked] = []

    def answer(each: Asked) -> Reply:
        asked.append(each)
        return chat_server(each)

    def fits(seed: int) -> bool:
        items = msgspec.structs.replace(work, seed=seed).items()
        return min(item.input_len for item in items) > FRAME

    work = workload(9, name="short", input_len=(FRAME, 20))
    # The first seed could be sent, and the second not.
    first = next(filter(fits, range(99)))
    seeds = (first, next(seed for seed in range(99) if not fits(seed)))
    both = msgspec.structs.replace(work, traces=(trace,))
    with pytest.raises(InvalidConfig, match=r"prompts: .* at least 8 .* 'short' has one of 7"):
        run(answer, load(both, text=True, seeds=seeds), kind="chat", model="m")
    assert not any(each.body.get("stream") for each in asked)


def test_words_that_are_not_a_token_each_are_refused() -> None:
    def bytewise(asked: Asked) -> Reply:
        count = len(asked.body["messages"][0]["content"])
        return Reply(body={"usage": {"prompt_tokens": count}})

    with pytest.raises(HeadwayError, match=f"tokens of {len(WORDS)} common words"):
        run(bytewise, load(text=True), kind="chat", model="m")
    with pytest.raises(HeadwayError, match="does not say how many tokens"):
        run(lambda _: Reply(body={}), load(text=True), kind="chat", model="m")


def test_a_prompt_of_text_is_its_words() -> None:
    assert text_prompt((0, 1, len(WORDS) - 1)) == f"Text: the of {WORDS[-1]}"
    assert len(set(WORDS)) == len(WORDS)
