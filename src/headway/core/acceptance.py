"""The door: who is let in to wait, and who is told at once that it cannot be (rules S10, A1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from headway.core.params import SamplingParams
from headway.core.request import Request
from headway.errors import InvalidRequest, QueueFull, RequestTooLarge

__all__ = ["Door"]

_DRAIN_WINDOW = 64


class Door:
    """Counts the accepted requests that were never admitted, and their prompt tokens.

    Limits are on those alone: a running or preempted request is past the door.
    """

    def __init__(
        self,
        *,
        max_model_len: int,
        vocab_size: int,
        max_logprobs: int = -1,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
    ) -> None:
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._max_logprobs = max_logprobs
        self._max_reqs = max_num_queued_reqs
        self._max_tokens = max_num_queued_tokens
        self.num_queued_reqs = 0
        self.num_queued_tokens = 0
        self._admissions: deque[tuple[float, int]] = deque(maxlen=_DRAIN_WINDOW)
        """(busy time, prompt tokens) of the last admissions: what the drain rate is measured on."""
        self._busy_s = 0.0
        """How long requests have been queued in all, up to when the queue was last empty. A
        drain rate over idle time too would say how fast requests came, not how fast they go."""
        self._busy_since_s = 0.0

    def check_room(self, now: float, num_reqs: int = 1, num_tokens: int = 0) -> None:
        """Raises QueueFull if these cannot be queued now, RequestTooLarge if they never can.

        Needs no prompt: call it before any work is done on one, with what is known.
        """
        drained = list(self._admissions)[1:]
        self._check_limit(
            "max_num_queued_reqs", self._max_reqs, self.num_queued_reqs, num_reqs,
            now, len(drained),
        )  # fmt: skip
        self._check_limit(
            "max_num_queued_tokens", self._max_tokens, self.num_queued_tokens, num_tokens,
            now, sum(tokens for _, tokens in drained),
        )  # fmt: skip

    def check(self, requests: Sequence[Request], now: float) -> None:
        """Raises what is wrong with the first bad one; sets each one's `max_total_tokens`, and
        puts the number of tokens for the -1 (all) of its log-probabilities.

        All of them are good, or none is to be queued. Room is asked for first: a flood of
        requests that cannot be taken must not cost a look at each one's prompt.
        """
        self.check_room(now, len(requests), sum(map(_new_prompt_tokens, requests)))
        checked: dict[int, tuple[SamplingParams, SamplingParams]] = {}
        for request in requests:
            if not request.token_ids:
                raise InvalidRequest("prompt", "is empty: at least one token is needed")
            self._check_ids("prompt", request.token_ids)
            params = request.params
            if id(params) not in checked:  # many requests may have the same
                self._check_params(request)
                checked[id(params)] = params, self._with_logprobs(params)
            request.resolve(checked[id(params)][1])
            request.limit_to(self._max_total(request))

    def enter(self, request: Request, now: float) -> None:
        if self.num_queued_reqs == 0:
            self._busy_since_s = now
        self.num_queued_reqs += 1
        self.num_queued_tokens += _new_prompt_tokens(request)

    def leave(self, request: Request, now: float, *, admitted: bool) -> None:
        """The request waits for its first admission no longer."""
        if admitted:
            self._admissions.append((self._busy(now), _new_prompt_tokens(request)))
        self.num_queued_reqs -= 1
        self.num_queued_tokens -= _new_prompt_tokens(request)
        if self.num_queued_reqs == 0:
            self._busy_s += now - self._busy_since_s

    def _busy(self, now: float) -> float:
        return self._busy_s + (now - self._busy_since_s if self.num_queued_reqs else 0.0)

    def _check_ids(self, field: str, ids: Collection[int] | None) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
            bad = next(t for t in ids if not 0 <= t < self._vocab_size)
            raise InvalidRequest(
                field, f"token {bad} is not in the vocabulary (0 … {self._vocab_size - 1})"
            )

    def _check_params(self, request: Request) -> None:
        """Refuses tokens that there are not, and bans that contradict each other whatever the
        model says. (Bad words of several tokens may leave nothing at some step: the sampler
        tells, and that request ends.)"""
        params = request.params
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("allowed_token_ids", params.allowed_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        if params.min_tokens and len(request.stop_token_ids) >= self._vocab_size:
            raise InvalidRequest("stop_token_ids", "leave no token to sample before min_tokens")
        if params.allowed_token_ids is None:
            return
        banned = {word[0] for word in request.bad_words if len(word) == 1}
        left = [token for token in params.allowed_token_ids if token not in banned]
        if not left:
            raise InvalidRequest("allowed_token_ids", "bad_words bans every one of them")
        if params.min_tokens and request.stop_token_ids.issuperset(left):
            raise InvalidRequest(
                "allowed_token_ids", "leave only tokens that end the output before min_tokens"
            )

    def _with_logprobs(self, params: SamplingParams) -> SamplingParams:
        resolved: dict[str, Any] = {}
        for field in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, field)
            if asked is None:
                continue
            if 0 <= self._max_logprobs < (self._vocab_size if asked == -1 else asked):
                raise InvalidRequest(
                    field, f"{asked} is more than max_logprobs ({self._max_logprobs})"
                )
            if not 0 <= asked <= self._vocab_size:
                resolved[field] = self._vocab_size
        return replace(params, **resolved) if resolved else params

    def _max_total(self, request: Request) -> int:
        num_prompt, asked = request.num_prompt_tokens, request.params.max_tokens
        room = self.max_model_len - num_prompt
        if room < 0 or (room == 0 and asked != 0):
            raise RequestTooLarge(
                "prompt",
                f"{num_prompt} tokens leave no room for output: max_model_len is "
                f"{self.max_model_len} tokens, prompt and output together",
            )
        return num_prompt + (room if asked is None else min(room, asked))

    def _check_limit(
        self, name: str, limit: int | None, queued: int, new: int, now: float, drained: int
    ) -> None:
        """`drained`: how many of that kind left the queue since the first kept admission."""
        if limit is None or queued + new <= limit:
            return
        unit = "requests" if name.endswith("reqs") else "prompt tokens"
        if new > limit:
            raise RequestTooLarge("prompt", f"{new} {unit} at once exceed {name} ({limit})")
        elapsed = self._busy(now) - self._admissions[0][0] if drained else 0.0
        raise QueueFull(
            f"{queued} {unit} are waiting and {new} more exceed {name} ({limit})",
            (queued + new - limit) * elapsed / drained if elapsed > 0 else None,
        )


def _new_prompt_tokens(request: Request) -> int:
    """The `n` completions of a prompt count its tokens once."""
    return 0 if request.index else request.num_prompt_tokens
