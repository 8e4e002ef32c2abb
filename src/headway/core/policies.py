"""Policies whose order changes while requests wait, and all of them by name (rule S13)."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import ClassVar

from headway.core.policy import (
    CachedTokens,
    FCFSPolicy,
    Policy,
    PriorityPolicy,
    RankedPolicy,
    SJFPolicy,
)
from headway.core.request import Request

__all__ = ["POLICIES", "DeadlinePolicy", "FairPolicy", "LPMPolicy"]

_LPM_WINDOW = 128
_LPM_AGING_TOKENS_PER_S = 100.0
_MOST_IDLE_TENANTS = 1024


class LPMPolicy(RankedPolicy):
    """Longest cached prefix first, as of now; a preempted request is before all that never ran.

    A second of waiting counts as `aging_tokens_per_s` cached tokens more. Only the first
    128 by arrival are compared, so that a long queue costs no more than a short one.
    """

    def __init__(self, aging_tokens_per_s: float = _LPM_AGING_TOKENS_PER_S) -> None:
        super().__init__()
        self._aging = aging_tokens_per_s

    def rank(self, request: Request, now: float, cached_tokens: int) -> tuple[float, ...]:  # noqa: ARG002
        return (request.first_scheduled_s is None,)

    def order(self, now: float, cached: CachedTokens) -> Iterator[Request]:
        def best_first(request: Request) -> tuple[float, ...]:
            if request.first_scheduled_s is not None:
                return (0, 0, request.sequence)
            value = cached(request) + (now - request.arrival_s) * self._aging
            return (1, -value, request.sequence)

        return iter(sorted(islice(self, _LPM_WINDOW), key=best_first))


class DeadlinePolicy(Policy):
    """Earliest TTFT deadline first; the late come by arrival after those in time, and get one
    admission in four while there are any. A preempted request is before all that never ran.

    A request without a deadline has one `default_s` seconds after its arrival.
    """

    heeds_deadline: ClassVar[bool] = True
    _IN_TIME_PER_LATE = 3

    def __init__(self, default_s: float = 10.0) -> None:
        self._default_s = default_s
        self._again: list[Request] = []
        self._in_time: list[Request] = []
        self._late: list[Request] = []
        self._turns_lost = 0
        """Admissions of requests in time, since a late one was admitted or could have been."""

    def add(self, request: Request, now: float, cached: CachedTokens) -> None:  # noqa: ARG002
        if request.first_scheduled_s is not None:
            insort(self._again, request, key=_arrival)
            return
        within_s = self._default_s if request.deadline_s is None else request.deadline_s
        request.rank = (request.arrival_s + within_s,)
        insort(self._in_time, request, key=lambda r: (*r.rank, r.sequence))

    def remove(self, request: Request) -> None:
        for queue in (self._again, self._in_time, self._late):
            if request in queue:
                queue.remove(request)
                return
        raise AssertionError(f"{request} does not wait")

    def admitted(self, request: Request, now: float) -> None:  # noqa: ARG002
        if request in self._late:
            self._turns_lost = 0
        elif request in self._in_time:
            self._turns_lost += bool(self._late)

    def order(self, now: float, cached: CachedTokens) -> Iterator[Request]:  # noqa: ARG002
        while self._in_time and self._in_time[0].rank[0] < now:
            insort(self._late, self._in_time.pop(0), key=_arrival)
        yield from list(self._again)
        in_time, late = deque(self._in_time), deque(self._late)
        while in_time or late:
            turn = late and (self._turns_lost >= self._IN_TIME_PER_LATE or not in_time)
            yield (late if turn else in_time).popleft()

    def __len__(self) -> int:
        return len(self._again) + len(self._in_time) + len(self._late)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._again, self._in_time, self._late)


class FairPolicy(Policy):
    """The tenant that was served least goes next, by arrival within it; nobody idles for a
    tenant that has nothing waiting (Sheng et al., "Fairness in Serving Large Language Models",
    OSDI 2024).

    Service is weighted: a prompt token counts `input_weight`, an output token `output_weight`,
    both divided by the tenant's weight. Cache hits and recomputation are free.
    """

    charges: ClassVar[bool] = True

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        input_weight: float = 1.0,
        output_weight: float = 2.0,
    ) -> None:
        self._weights = weights or {}
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._queues: dict[str, list[Request]] = {}
        """Tenants with waiting requests alone."""
        self._running: Counter[str] = Counter()
        self.service: dict[str, float] = {}
        """Weighted tokens by tenant, on a common scale."""

    def add(self, request: Request, now: float, cached: CachedTokens) -> None:  # noqa: ARG002
        tenant = request.tenant
        if request.first_scheduled_s is not None:
            self._running[tenant] -= 1
        if tenant not in self._queues:
            active = self._queues or {name for name, count in self._running.items() if count}
            floor = min((self.service[name] for name in active), default=0.0)
            self.service[tenant] = max(self.service.get(tenant, 0.0), floor)
            self._queues[tenant] = []
            self._forget_idle(floor)
        insort(self._queues[tenant], request, key=_arrival)

    def remove(self, request: Request) -> None:
        queue = self._queues[request.tenant]
        queue.remove(request)
        if not queue:
            del self._queues[request.tenant]

    def admitted(self, request: Request, now: float) -> None:  # noqa: ARG002
        self._running[request.tenant] += 1

    def ended(self, request: Request) -> None:
        self._running[request.tenant] -= 1

    def order(self, now: float, cached: CachedTokens) -> Iterator[Request]:  # noqa: ARG002
        left = {tenant: deque(queue) for tenant, queue in self._queues.items()}
        while left:
            tenant = min(left, key=lambda name: (self.service[name], left[name][0].sequence))
            yield left[tenant].popleft()
            if not left[tenant]:
                del left[tenant]

    def charge(self, request: Request, num_prompt_tokens: int, num_output_tokens: int) -> None:
        tokens = num_prompt_tokens * self._input_weight + num_output_tokens * self._output_weight
        self.service[request.tenant] += tokens / self._weights.get(request.tenant, 1.0)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._queues.values())

    def _forget_idle(self, floor: float) -> None:
        """Whoever has nothing here and less than `floor` would begin at `floor` again."""
        if len(self.service) > len(self._queues) + _MOST_IDLE_TENANTS:
            for tenant in [name for name, amount in self.service.items() if amount <= floor]:
                if tenant not in self._queues and not self._running[tenant]:
                    del self.service[tenant], self._running[tenant]


def _arrival(request: Request) -> int:
    return request.sequence


POLICIES: Mapping[str, type[Policy]] = {
    "fcfs": FCFSPolicy,
    "priority": PriorityPolicy,
    "fair": FairPolicy,
    "sjf": SJFPolicy,
    "lpm": LPMPolicy,
    "deadline": DeadlinePolicy,
}
"""By the name that `scheduling_policy` takes."""
