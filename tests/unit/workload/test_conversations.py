"""What requests have in common: turns of a conversation, documents of a pool, prefixes."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidConfig
from headway.workload import (
    Documents,
    Exponential,
    Pause,
    Poisson,
    SharedPrefix,
    TrafficClass,
    Turns,
    WorkItem,
    Workload,
)
from headway.workload.turns import draw_pause

AGENT = TrafficClass(
    name="agent",
    num_prompts=4,
    input_len=(20, 30),
    output_len=(2, 5),
    arrivals=Poisson(2.0),
    shared_prefix=SharedPrefix(len=12),
    turns=Turns(count=(1, 5), input_len=(6, 9), pause_s=(0.1, 0.2)),
)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000))
def test_each_turn_goes_on_from_the_one_that_it_follows(seed: int) -> None:
    other = msgspec.structs.replace(AGENT, name="other")
    items = Workload(classes=(AGENT, other), seed=seed).items()
    assert items == Workload(classes=(AGENT, other), seed=seed).items()
    assert [item.arrival_s for item in items] == sorted(item.arrival_s for item in items)
    turns = Counter[int]()
    for index, item in enumerate(items):
        if item.follows is None:
            assert (item.own_from, item.own_ids, item.pause_s) == (0, item.token_ids, 0)
            assert 20 <= item.input_len <= 30
            continue
        assert item.follows < index
        before = items[item.follows]
        turns[item.follows] += 1
        assert before.class_name == item.class_name
        assert item.token_ids[: before.input_len] == before.token_ids
        answer = item.token_ids[before.input_len : item.own_from]
        assert answer == item.made_up_answer_ids
        assert len(answer) == before.output_len
        assert item.token_ids[item.own_from :] == item.own_ids
        assert 6 <= len(item.own_ids) <= 9
        assert 2 <= item.output_len <= 5
        assert 0.1 <= item.pause_s <= 0.2
        assert item.arrival_s == before.arrival_s + item.pause_s
    assert set(turns.values()) <= {1}, "a turn is followed by one at most"


def test_conversations_have_the_turns_asked_for() -> None:
    kind = msgspec.structs.replace(AGENT, num_prompts=200)
    items = Workload(classes=(kind,)).items()
    place: dict[int, int] = {}
    for index, item in enumerate(items):
        place[index] = 1 if item.follows is None else place[item.follows] + 1
    firsts = sum(item.follows is None for item in items)
    reached = Counter(place.values())
    assert (firsts, set(reached)) == (200, {1, 2, 3, 4, 5})
    # Of counts from 1 to 5, four fifths go on after the first, and so on down.
    assert [reached[n] / 200 for n in (2, 3, 4, 5)] == pytest.approx([0.8, 0.6, 0.4, 0.2], abs=0.15)


def test_turns_leave_the_first_requests_as_they_were() -> None:
    alone = msgspec.structs.replace(AGENT, turns=None)
    firsts = [item for item in Workload(classes=(AGENT,)).items() if item.follows is None]
    assert firsts == Workload(classes=(alone,)).items()


@pytest.mark.parametrize(
    ("pause", "low", "mean", "high"),
    [(2, 2, 2, 2), ((1.0, 3.0), 1, 2, 3), (Exponential(2.0), 0, 2, 60)],
)
def test_pauses(pause: Pause, low: float, mean: float, high: float) -> None:
    drawn = [draw_pause(pause, random) for random in [Random(0)] for _ in range(4000)]
    assert low <= min(drawn) <= max(drawn) <= high
    assert sum(drawn) / 4000 == pytest.approx(mean, rel=0.1)


def rag(num_prompts: int, /, **fields: object) -> list[WorkItem]:
    kind = TrafficClass(
        name="rag",
        num_prompts=num_prompts,
        input_len=30,
        output_len=1,
        shared_prefix=SharedPrefix(len=10),
        documents=Documents(**{"len": (40, 60), "count": 20, **fields}),
    )
    return Workload(classes=(kind,)).items()


def test_documents_come_between_the_system_prompt_and_the_question() -> None:
    items = rag(50, per_prompt=(1, 3))
    for item in items:
        system, *documents, question = item.prompt
        assert system == items[0].prompt[0]
        assert 1 <= len(documents) <= 3
        assert len(set(documents)) == len(documents), "no document twice"
        assert all(40 <= document.len <= 60 for document in documents)
        assert (system.len, question.len) == (10, 20)
        assert item.input_len == 30 + sum(document.len for document in documents)
    assert len({item.prompt[-1] for item in items}) == 50
    found = {document.key: document for item in items for document in item.prompt[1:-1]}
    assert len(found) <= 20
    assert {d for item in items for d in item.prompt[1:-1]} == set(found.values())


def test_popularity_is_zipfs() -> None:
    def popular(zipf: float) -> list[float]:
        counts = Counter(item.prompt[1].key for item in rag(4000, zipf=zipf))
        return [count / 4000 for _, count in counts.most_common()]

    even = popular(0.0)
    assert (len(even), max(even)) == (20, pytest.approx(0.05, abs=0.02))
    harmonic = sum(1 / rank for rank in range(1, 21))
    assert popular(1.0)[:3] == pytest.approx([1 / harmonic / k for k in (1, 2, 3)], abs=0.03)


def test_the_whole_pool_can_be_in_a_prompt() -> None:
    [item] = rag(1, count=5, per_prompt=5, zipf=10.0)
    assert len({text.key for text in item.prompt}) == 7


def test_prefixes_can_be_unequally_popular() -> None:
    kind = TrafficClass(
        name="a", num_prompts=3000, input_len=9, output_len=1,
        shared_prefix=SharedPrefix(len=8, count=3, zipf=1.0),
    )  # fmt: skip
    counts = Counter(item.prompt[0].key for item in Workload(classes=(kind,)).items())
    shares = [count / 3000 for _, count in counts.most_common()]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turns": Turns(count=0, input_len=5)}, "turns.count: must be"),
        ({"turns": Turns(count=2, input_len=(3, 1))}, "turns.input_len: must be"),
        ({"turns": Turns(count=2, input_len=5, pause_s=-1)}, "turns.pause_s: must be seconds"),
        ({"turns": Turns(count=2, input_len=5, pause_s=(2, 1))}, "turns.pause_s: must be seconds"),
        (
            {"turns": Turns(count=2, input_len=5, pause_s=Exponential(0))},
            "turns.pause_s: must be seconds",
        ),
        ({"documents": Documents(len=0, count=3)}, "documents.len: must be"),
        ({"documents": Documents(len=1, count=0)}, "documents.count: must be"),
        ({"documents": Documents(len=1, count=2, zipf=-1)}, "documents.zipf: must be"),
        (
            {"documents": Documents(len=1, count=2, per_prompt=(1, 3))},
            "documents.per_prompt: must be at most the pool's 2, not 3",
        ),
        ({"shared_prefix": SharedPrefix(len=2, zipf=11)}, "shared_prefix.zipf: must be"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    kind = msgspec.structs.replace(AGENT, **fields)
    with pytest.raises(InvalidConfig, match=rf"^classes\[0\].{message}"):
        Workload(classes=(kind,)).check()
