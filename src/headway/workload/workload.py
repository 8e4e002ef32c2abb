"""A workload: classes of requests and traces, and the requests that they come to."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import msgspec

from headway.errors import InvalidConfig
from headway.workload.items import WorkItem, in_order
from headway.workload.kinds import KINDS, kind_path
from headway.workload.traces import Trace
from headway.workload.traffic import TrafficClass

__all__ = ["PLAIN_TOKENS", "Workload", "read_workload"]

PLAIN_TOKENS = (1000, 30_000)
"""Token ids, the second excluded, that are plain text in the vocabularies of all families here:
above the special and byte tokens at the beginning, within the smallest (32,000)."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Classes of requests, traces, and a seed.

    Lengths, arrivals and tokens of each class are drawn from streams of their own, so a change
    of one leaves the others as they were.
    """

    classes: tuple[TrafficClass, ...] = ()
    traces: tuple[Trace, ...] = ()
    seed: int = 0
    token_ids: tuple[int, int] = PLAIN_TOKENS
    """Prompts are made of these, the second excluded."""

    @property
    def sources(self) -> tuple[TrafficClass | Trace, ...]:
        """Whatever is reported by a name of its own."""
        return (*self.classes, *self.traces)

    @property
    def shares_prefixes(self) -> bool:
        """Prompts of its classes have common beginnings by design; of a trace, `Replay` says."""
        return any(kind.shared_prefix or kind.documents or kind.turns for kind in self.classes)

    def check(self) -> None:
        """Raises InvalidConfig, naming the field, for what makes no sense. A trace's file is read
        by `items`."""
        names = [source.name for source in self.sources]
        if not names or len(set(names)) < len(names):
            raise InvalidConfig(
                "classes", f"(and traces) must be one or more, of different names, not {names}"
            )
        low, high = self.token_ids
        if not 0 <= low < high:
            raise InvalidConfig("token_ids", f"must be two ids in order, not {low}, {high}")
        for field in ("classes", "traces"):
            for index, source in enumerate(getattr(self, field)):
                source.check(f"{field}[{index}]")

    def users(self, class_name: str) -> int | None:
        """Of a class in a closed loop: how many of its requests, or conversations, are under way
        at most."""
        return next((each.users for each in self.sources if each.name == class_name), None)

    def items(self, ids: tuple[int, int] | None = None) -> list[WorkItem]:
        """All requests in order of arrival, the same ones every time.

        Args:
            ids: what prompts are made of, where not of `token_ids`.

        Raises InvalidConfig for a trace that cannot be read.
        """
        choices = range(*(ids or self.token_ids))
        return in_order([source.items(self.seed, choices) for source in self.sources])


def read_workload(path: str | PathLike[str]) -> Workload:
    """One of `KINDS` by its name, or from a file that holds one as JSON, alone or as `workload` of
    a saved result. A file that is called like a kind is read as `./chat`.

    Raises InvalidConfig that names the file and the field that is wrong.
    """
    found = _decode(kind_path(path) if path in KINDS else Path(path))
    try:
        found.check()
    except InvalidConfig as error:
        raise InvalidConfig("workload", f"{path}: {error}") from None
    return found


def _decode(path: Path) -> Workload:
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "" if path.suffix or path.parent.name else f"; kinds are {', '.join(KINDS)}"
        raise InvalidConfig("workload", f"{path}: {error.strerror or error}{hint}") from None
    try:
        found = msgspec.json.decode(data)
        inner = found.get("workload", found) if isinstance(found, dict) else found
        workload = msgspec.convert(inner, Workload)
    except msgspec.MsgspecError as error:
        raise InvalidConfig("workload", f"{path}: {error}") from None
    traces = tuple(
        msgspec.structs.replace(trace, path=str(path.parent.resolve() / trace.path))
        for trace in workload.traces
    )
    return msgspec.structs.replace(workload, traces=traces)
