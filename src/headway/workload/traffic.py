"""Classes of requests: drawn at random, each aspect from a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from headway.errors import InvalidConfig
from headway.workload.arrivals import Arrivals, AtOnce, ClosedLoop, arrival_times, check_arrivals
from headway.workload.items import WorkItem
from headway.workload.lengths import Length, check_length, draw_lengths, shortest
from headway.workload.sharing import (
    Documents,
    SharedPrefix,
    check_documents,
    check_prefix,
    draw_documents,
    draw_prefix,
)
from headway.workload.texts import Text
from headway.workload.turns import Turns, check_turns, draw_pause

__all__ = ["TrafficClass"]


class TrafficClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one kind, which are reported together."""

    name: str
    num_prompts: int
    """Requests; with `turns` conversations, each of several requests."""
    input_len: Length
    """Of the whole prompt, exactly, but for documents and later turns, which come on top."""
    output_len: Length
    arrivals: Arrivals = msgspec.field(default_factory=AtOnce)
    """Of the requests that follow none."""
    shared_prefix: SharedPrefix | None = None
    documents: Documents | None = None
    """Come after the shared prefix."""
    turns: Turns | None = None
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    """More fields of each request, such as `priority`; they win over those that all have."""

    @property
    def users(self) -> int | None:
        """In a closed loop: requests, or conversations, under way at most."""
        return self.arrivals.users if isinstance(self.arrivals, ClosedLoop) else None

    def check(self, field: str) -> None:
        """Raises InvalidConfig, naming `field` and what is wrong in it."""
        if self.num_prompts < 1:
            raise InvalidConfig(
                f"{field}.num_prompts", f"must be at least 1, not {self.num_prompts}"
            )
        check_length(f"{field}.input_len", self.input_len)
        check_length(f"{field}.output_len", self.output_len)
        check_arrivals(f"{field}.arrivals", self.arrivals)
        if self.shared_prefix is not None:
            check_prefix(f"{field}.shared_prefix", self.shared_prefix, shortest(self.input_len))
        if self.documents is not None:
            check_documents(f"{field}.documents", self.documents)
        if self.turns is not None:
            check_turns(f"{field}.turns", self.turns)

    def items(self, seed: int, ids: range) -> list[WorkItem]:
        """Its requests, a conversation's one after the other. A change of one field leaves what the
        others come to as it was."""
        draws = _Draws(f"{seed}/{self.name}", ids)
        firsts = _firsts(self, draws)
        if self.turns is None:
            return firsts
        return _conversations(self, self.turns, draws, firsts)


@dataclass(frozen=True, slots=True)
class _Draws:
    """Streams and texts of a class, by name."""

    key: str
    ids: range

    def random(self, what: str) -> Random:
        return Random(f"{self.key}/{what}")

    def text(self, what: str, length: int) -> Text:
        return Text(f"{self.key}/{what}", length, self.ids)


def _prefixes(kind: TrafficClass, draws: _Draws) -> list[tuple[Text, ...]]:
    """What each prompt begins with: nothing, or one text."""
    shared = kind.shared_prefix
    if shared is None:
        return [()] * kind.num_prompts
    random = draws.random("prefixes")
    numbers = [draw_prefix(shared, random) for _ in range(kind.num_prompts)]
    return [() if each is None else (draws.text(f"prefix {each}", shared.len),) for each in numbers]


def _documents(kind: TrafficClass, draws: _Draws) -> list[tuple[Text, ...]]:
    """Those of each prompt."""
    documents = kind.documents
    if documents is None:
        return [()] * kind.num_prompts
    lengths = draw_lengths(documents.len, documents.count, draws.random("document lengths"))
    counts = draw_lengths(documents.per_prompt, kind.num_prompts, draws.random("per prompt"))
    random = draws.random("documents")
    numbers = [draw_documents(documents, count, random) for count in counts]
    return [
        tuple(draws.text(f"document {each}", lengths[each]) for each in drawn) for drawn in numbers
    ]


def _firsts(kind: TrafficClass, draws: _Draws) -> list[WorkItem]:
    count = kind.num_prompts
    inputs = draw_lengths(kind.input_len, count, draws.random("input"))
    outputs = draw_lengths(kind.output_len, count, draws.random("output"))
    arrivals = arrival_times(kind.arrivals, count, draws.random("arrivals"))
    prefixes, documents = _prefixes(kind, draws), _documents(kind, draws)
    items = []
    for index, (prefix, found) in enumerate(zip(prefixes, documents, strict=True)):
        length = inputs[index] - sum(text.len for text in prefix)
        rest = draws.text(f"prompt {index}", length)
        prompt = (*prefix, *found, rest)
        items.append(WorkItem(kind.name, arrivals[index], prompt, outputs[index]))
    return items


def _conversations(
    kind: TrafficClass, turns: Turns, draws: _Draws, firsts: list[WorkItem]
) -> list[WorkItem]:
    counts = draw_lengths(turns.count, len(firsts), draws.random("turns"))
    items: list[WorkItem] = []
    for index, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        # Streams of its own for each, so that a conversation keeps its turns if others change.
        inputs = draw_lengths(turns.input_len, count - 1, draws.random(f"turn inputs {index}"))
        outputs = draw_lengths(kind.output_len, count - 1, draws.random(f"turn outputs {index}"))
        pauses = draws.random(f"pauses {index}")
        items.append(first)
        for turn, (added, output_len) in enumerate(zip(inputs, outputs, strict=True)):
            before = items[-1]
            answer = draws.text(f"answer {index}.{turn}", before.output_len)
            own = draws.text(f"turn {index}.{turn}", added)
            pause_s = draw_pause(turns.pause_s, pauses)
            items.append(
                WorkItem(
                    kind.name,
                    before.arrival_s + pause_s,
                    (*before.prompt, answer, own),
                    output_len,
                    follows=len(items) - 1,
                    pause_s=pause_s,
                    own_from=before.input_len + before.output_len,
                )
            )
    return items
