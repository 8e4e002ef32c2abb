"""A workload: classes of requests, and the requests that they come to."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from random import Random

import msgspec

from headway.errors import InvalidConfig
from headway.workload.arrivals import Arrivals, AtOnce, ClosedLoop, arrival_times, check_arrivals
from headway.workload.lengths import Length, check_length, draw_lengths, shortest

__all__ = [
    "PLAIN_TOKENS",
    "SharedPrefix",
    "TrafficClass",
    "WorkItem",
    "Workload",
    "read_workload",
]

PLAIN_TOKENS = (1000, 30_000)
"""Token ids, the second excluded, that are plain text in the vocabularies of all families here:
above the special and byte tokens at the beginning, within the smallest (32,000)."""


class SharedPrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What some prompts of a class begin with."""

    len: int
    """Tokens; part of the prompt's length."""
    share: float = 1.0
    """Of the prompts, in (0, 1]; which ones is drawn."""
    count: int = 1
    """Different prefixes, drawn evenly."""


class TrafficClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of one kind, which are reported together."""

    name: str
    num_prompts: int
    input_len: Length
    """Of the whole prompt, exactly."""
    output_len: Length
    arrivals: Arrivals = msgspec.field(default_factory=AtOnce)
    shared_prefix: SharedPrefix | None = None


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request."""

    class_name: str
    arrival_s: float
    """From the start; in a closed loop the earliest moment."""
    token_ids: tuple[int, ...]
    """The prompt."""
    output_len: int
    """Most tokens of the answer."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Classes of requests and a seed.

    Lengths, arrivals and tokens of each class are drawn from streams of their own, so a change
    of one leaves the others as they were.
    """

    classes: tuple[TrafficClass, ...]
    seed: int = 0
    token_ids: tuple[int, int] = PLAIN_TOKENS
    """Prompts are made of these, the second excluded."""

    def check(self) -> None:
        """Raises InvalidConfig, naming the field, for what makes no sense."""
        names = [kind.name for kind in self.classes]
        if not names or len(set(names)) < len(names):
            raise InvalidConfig("classes", f"must be one or more, of different names, not {names}")
        low, high = self.token_ids
        if not 0 <= low < high:
            raise InvalidConfig("token_ids", f"must be two ids in order, not {low}, {high}")
        for index, kind in enumerate(self.classes):
            _check_class(f"classes[{index}]", kind)

    def users(self, class_name: str) -> int | None:
        """Of a class in a closed loop: how many of its requests are under way at most."""
        for kind in self.classes:
            if kind.name == class_name and isinstance(kind.arrivals, ClosedLoop):
                return kind.arrivals.users
        return None

    def items(self, ids: tuple[int, int] | None = None) -> list[WorkItem]:
        """All requests in order of arrival, the same ones every time.

        Args:
            ids: what prompts are made of, where not of `token_ids`.
        """
        low, high = ids or self.token_ids
        choices = range(low, high)
        items = [item for kind in self.classes for item in self._items_of(kind, choices)]
        return sorted(items, key=lambda item: item.arrival_s)

    def _items_of(self, kind: TrafficClass, choices: range) -> list[WorkItem]:
        count = kind.num_prompts
        inputs = draw_lengths(kind.input_len, count, self._random(kind, "input"))
        outputs = draw_lengths(kind.output_len, count, self._random(kind, "output"))
        arrivals = arrival_times(kind.arrivals, count, self._random(kind, "arrivals"))
        tokens, prefixes = self._random(kind, "tokens"), self._random(kind, "prefixes")
        shared = kind.shared_prefix
        texts = [] if shared is None else _texts(shared, choices, prefixes)
        items = []
        for length, output_len, arrival_s in zip(inputs, outputs, arrivals, strict=True):
            begin: tuple[int, ...] = ()
            if shared is not None and prefixes.random() < shared.share:
                begin = prefixes.choice(texts)
            rest = tokens.choices(choices, k=length)[len(begin) :]
            items.append(WorkItem(kind.name, arrival_s, (*begin, *rest), output_len))
        return items

    def _random(self, kind: TrafficClass, what: str) -> Random:
        return Random(f"{self.seed}/{kind.name}/{what}")


def _texts(shared: SharedPrefix, choices: range, random: Random) -> list[tuple[int, ...]]:
    return [tuple(random.choices(choices, k=shared.len)) for _ in range(shared.count)]


def _check_class(field: str, kind: TrafficClass) -> None:
    if kind.num_prompts < 1:
        raise InvalidConfig(f"{field}.num_prompts", f"must be at least 1, not {kind.num_prompts}")
    check_length(f"{field}.input_len", kind.input_len)
    check_length(f"{field}.output_len", kind.output_len)
    check_arrivals(f"{field}.arrivals", kind.arrivals)
    shared = kind.shared_prefix
    if shared is None:
        return
    least = shortest(kind.input_len)
    if not 1 <= shared.len < least:
        raise InvalidConfig(
            f"{field}.shared_prefix.len",
            f"must be from 1 to below the shortest prompt ({least}), not {shared.len}",
        )
    if not 0 < shared.share <= 1:
        raise InvalidConfig(
            f"{field}.shared_prefix.share", f"must be in (0, 1], not {shared.share}"
        )
    if shared.count < 1:
        raise InvalidConfig(
            f"{field}.shared_prefix.count", f"must be at least 1, not {shared.count}"
        )


def read_workload(path: str | PathLike[str]) -> Workload:
    """From a file that holds one as JSON, alone or as `workload` of a saved result.

    Raises InvalidConfig that names the file and the field that is wrong.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig("workload", f"{path}: {error.strerror or error}") from None
    try:
        found = msgspec.json.decode(data)
        inner = found.get("workload", found) if isinstance(found, dict) else found
        workload = msgspec.convert(inner, Workload)
    except msgspec.MsgspecError as error:
        raise InvalidConfig("workload", f"{path}: {error}") from None
    try:
        workload.check()
    except InvalidConfig as error:
        raise InvalidConfig("workload", f"{path}: {error}") from None
    return workload
