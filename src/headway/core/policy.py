"""Who goes next and who gives way: small objects that hold no state of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Reversible
from typing import ClassVar, Protocol

from headway.core.request import Request

__all__ = ["POLICIES", "FCFSPolicy", "Policy", "PriorityPolicy"]


class Policy(Protocol):
    heeds_priority: ClassVar[bool]
    """Whether a request's `priority` means anything; where it does not, it is refused."""

    def rank(self, request: Request) -> tuple[int, ...]:
        """Orders the waiting: the smallest goes first. Unique, and fixed while it waits."""
        ...

    def victim(self, running: Reversible[Request]) -> Request:
        """Which of the running requests, in order of admission, is preempted (rule S6)."""
        ...


class FCFSPolicy:
    """First come, first served: a preempted request is before all that came after it."""

    heeds_priority: ClassVar[bool] = False

    def rank(self, request: Request) -> tuple[int, ...]:
        return (request.sequence,)

    def victim(self, running: Reversible[Request]) -> Request:
        return next(reversed(running))


class PriorityPolicy:
    """Lower `priority` is more urgent; ties go to the earlier arrival (rule S12). Strict: an
    urgent stream can hold up the others for as long as it lasts."""

    heeds_priority: ClassVar[bool] = True

    def rank(self, request: Request) -> tuple[int, ...]:
        return (request.priority, request.sequence)

    def victim(self, running: Reversible[Request]) -> Request:
        return max(reversed(running), key=self.rank)


POLICIES: Mapping[str, type[Policy]] = {"fcfs": FCFSPolicy, "priority": PriorityPolicy}
"""By the name that `scheduling_policy` takes."""
