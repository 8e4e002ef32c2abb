"""Speculative decoding: which requests get drafts, how many, and when none pay (rule S14).

A step that checks drafts takes longer; each draft that is accepted saves a step. How likely a
request's drafts are accepted, what one more token costs, and what drafting takes is measured, and
each step is given the drafts with which it promises the most tokens per second: many for one
request alone, which hardly cost anything where reading the weights is what takes time, few or
none for a full batch, none where they are not accepted.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.clock import Clock
from headway.core.drafting import NO_DRAFTS
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Request
from headway.engine.costs import LinearFit
from headway.metrics import StepRecord

__all__ = ["Evidence", "Proposer", "Speculator", "draft_lengths"]

logger = logging.getLogger(__name__)

_FADE = 0.5 ** (1 / 64)
"""Weight of what was seen, from one step to the next: half of it is forgotten in 64 steps. So
what did not pay is tried again."""
_PRIOR_CHANCE = 0.6
_PRIOR_WEIGHT = 4.0
"""Drafts that a chance starts out with, as if they had been tried."""
_LOOK_EVERY = 16
"""Steps after which to look again whether drafts pay, where they did not."""
_MEMORY = 0.98
"""Weight of a step's duration after the next one."""
_MOST_DURATION = 3.0
"""Times the mean: what takes longer was held up by something else, and counts as this."""


class Proposer(Protocol):
    """Guesses what requests will sample."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> Mapping[str, tuple[int, ...]]:
        """Up to so many tokens after the known ones of each request, by its id. Nothing of the
        requests is in flight; one without a guess is left out."""
        ...


@dataclass(slots=True)
class Evidence:
    """How drafts fared: of so many that were tried, so many were accepted. It fades."""

    accepted: float = 0.0
    tried: float = 0.0
    step: int = 0
    """When it was last brought up to date."""

    def add(self, accepted: int, tried: int, step: int) -> None:
        fade = _FADE ** (step - self.step)
        self.accepted = fade * self.accepted + accepted
        self.tried = fade * self.tried + tried
        self.step = step

    def chance(self, prior: float, step: int) -> float:
        """That the next draft is accepted: as seen, as far as it goes, else the prior."""
        fade = _FADE ** (step - self.step)
        accepted = fade * self.accepted + _PRIOR_WEIGHT * prior
        return accepted / (fade * self.tried + _PRIOR_WEIGHT)


def draft_lengths(
    chances: Sequence[float],
    most: Sequence[int],
    *,
    num_outputs: int,
    step_s: float,
    draft_s: float,
) -> list[int]:
    """How many drafts each request is to have, so that the step gives the most tokens per second.

    The n-th draft of a request is accepted with the n-th power of its chance. The likeliest is
    taken first, as long as it adds more tokens per second than the step gives without.

    Args:
        chances: by request, that a draft is accepted if those before it were; in [0, 1].
        most: by request, drafts at most.
        num_outputs: tokens that the step gives without drafts.
        step_s: seconds that it takes without.
        draft_s: seconds that making and checking one draft takes.
    """
    lengths = [0] * len(chances)
    outputs, seconds = float(num_outputs), step_s
    heap = [(-chance, i) for i, chance in enumerate(chances) if most[i] > 0]
    heapq.heapify(heap)
    while heap:
        likelihood, i = -heap[0][0], heap[0][1]
        if likelihood * seconds <= draft_s * outputs:
            break
        outputs += likelihood
        seconds += draft_s
        lengths[i] += 1
        if lengths[i] < most[i]:
            heapq.heapreplace(heap, (-likelihood * chances[i], i))
        else:
            heapq.heappop(heap)
    return lengths


class Speculator:
    """Asks a proposer for as many drafts as pay. For the thread that steps alone.

    Attributes:
        engaged: drafts may pay in the next plan, which is therefore to be made when nothing is in
            flight; else plans may overlap with steps.

    Args:
        num_tokens: most drafts of one request.
        clock: times the proposer.
    """

    def __init__(self, proposer: Proposer, *, num_tokens: int, clock: Clock) -> None:
        self.engaged = True
        self._proposer: Proposer | None = proposer
        self._num_tokens = num_tokens
        self._clock = clock
        self._step = 0
        self._overall = Evidence()
        self._by_request: dict[str, Evidence] = {}
        self._decoding = LinearFit(memory=_MEMORY, least_spread=0.5)
        """Duration of steps that only decode over their tokens."""
        self._check_s: float | None = None
        """What one more token in a step last cost; None until that was seen."""
        self._drafting = LinearFit(memory=_MEMORY, least_spread=0.5)
        """Time of a proposal over its drafts."""

    def propose(self, requests: Sequence[Request]) -> Mapping[str, Sequence[int]]:
        """Drafts for the next plan. Requests that can take none now are not among `requests`."""
        if self._proposer is None:
            return NO_DRAFTS
        lengths = self._lengths(requests)
        # With nobody to draft for now, what matters is whether somebody new might have drafts.
        pay = any(lengths) if requests else any(self._lengths_of(1, [self._prior], [1]))
        self.engaged = pay or self._check_s is None
        wanted = [item for item in zip(requests, lengths, strict=True) if item[1]]
        if not wanted:
            return NO_DRAFTS
        began_s = self._clock.now()
        try:
            drafts = self._proposer.propose(wanted)
        except Exception:
            logger.exception("drafts could not be made; from here on there are none")
            self._proposer, self.engaged = None, False
            return NO_DRAFTS
        num_drafts = sum(map(len, drafts.values()))
        self._drafting.observe(num_drafts, self._clock.now() - began_s)
        return drafts

    def observe(self, plan: StepPlan, result: StepResult, record: StepRecord) -> None:
        """Takes what a step came to."""
        self._step += 1
        if self._proposer is not None and self._step % _LOOK_EVERY == 0:
            self.engaged = True
        num_known = record.num_tokens - record.num_draft_tokens
        if num_known == len(plan.chunks) > 0:
            mean = self._decoding.mean
            most_s = record.duration_s if mean is None else _MOST_DURATION * mean[1]
            self._decoding.observe(record.num_tokens, min(record.duration_s, most_s))
            if (slope := self._decoding.slope) is not None:
                self._check_s = max(slope, 0.0)
        if not record.num_draft_tokens:
            return
        for index, chunk in enumerate(plan.chunks):
            if chunk.num_drafts:
                accepted = len(result.accepted.get(index, ()))
                tried = min(accepted + 1, chunk.num_drafts)  # those after a wrong one tell nothing
                own = self._by_request.setdefault(chunk.request_id, Evidence())
                own.add(accepted, tried, self._step)
                self._overall.add(accepted, tried, self._step)

    @property
    def _prior(self) -> float:
        return self._overall.chance(_PRIOR_CHANCE, self._step)

    def _lengths(self, requests: Sequence[Request]) -> list[int]:
        if len(self._by_request) > 2 * len(requests) + 64:
            ids = {request.request_id for request in requests}
            self._by_request = {k: v for k, v in self._by_request.items() if k in ids}
        prior, none = self._prior, Evidence()
        chances = [
            self._by_request.get(request.request_id, none).chance(prior, self._step)
            for request in requests
        ]
        # The last token of a request needs no draft: it comes with the one before.
        most = [
            min(self._num_tokens, request.max_total_tokens - len(request.token_ids) - 1)
            for request in requests
        ]
        return self._lengths_of(len(requests), chances, most)

    def _lengths_of(
        self, num_outputs: int, chances: Sequence[float], most: Sequence[int]
    ) -> list[int]:
        mean = self._decoding.mean
        if mean is None or self._check_s is None:
            # To see what a draft costs, every other step has as many as there may be.
            return [0 if self._step % 2 else count for count in most]
        num_tokens, duration_s = mean
        step_s = max(duration_s + self._check_s * (num_outputs - num_tokens), 0.0)
        drafting = self._drafting.mean
        draft_s = self._check_s + (drafting[1] / max(drafting[0], 1.0) if drafting else 0.0)
        return draft_lengths(chances, most, num_outputs=num_outputs, step_s=step_s, draft_s=draft_s)
