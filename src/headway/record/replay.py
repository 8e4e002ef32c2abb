"""Runs a recording through the real scheduler.

The calls come in the recorded order, with the recorded times and costs. Tokens are made up: the
hash of a block stands for its tokens, so that what was equal is equal again, in outputs that
became part of later prompts too. Where a request ended by a stop token, it does so again after as
many tokens.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import sha256, shake_128
from typing import Any

from headway.core.params import SamplingParams
from headway.core.plan import Chunk, ChunkError, StepPlan, StepResult, TokenLogprobs
from headway.core.request import FinishReason, Request
from headway.core.step import StepOutcome
from headway.errors import InvalidRequest, QueueFull
from headway.record.lines import (
    Added,
    Applied,
    Arrival,
    Ended,
    Finished,
    Left,
    Line,
    Planned,
    Recording,
    Refused,
)
from headway.record.recorder import Recorder
from headway.record.setup import SchedulerConfig, build_scheduler

__all__ = ["replay"]

_VOCAB_SIZE = 2**32
"""Of the tokens made up: so large that no two that differ are the same by chance."""


def replay(recording: Recording, overrides: Mapping[str, Any] | None = None) -> Iterator[Line]:
    """The lines that the scheduler of this version makes of the recorded calls.

    `overrides` are fields of the configuration that are to be other than recorded. From the
    first plan that differs on, the rest is what would come of the same calls at the same times.

    Raises InvalidRecording, or InvalidConfig for an override.
    """
    config = recording.config.with_overrides(overrides or {})
    replayed = _Replay(config, recording.config.block_size, _Ends(recording))
    for line in recording:
        replayed.take(line)
        yield from replayed.lines
        replayed.lines.clear()


class _Ends:
    """How each request of a recording ended: known beforehand, as its tokens depend on it."""

    def __init__(self, recording: Recording) -> None:
        self.by_number: dict[int, Ended] = {}
        self.by_stop_token: set[int] = set()
        for line in recording:
            match line:
                case Applied():
                    self._take(line.ended)
                    self.by_stop_token |= {end.number for end in line.ended if end.reason == "stop"}
                case Finished():
                    self._take([line.ended])
                case Left():
                    self._take(line.unfinished)

    def _take(self, ended: list[Ended]) -> None:
        self.by_number.update((end.number, end) for end in ended)


class _Tokens:
    """The tokens of one request, by position; the same for equal blocks of other requests."""

    def __init__(self, arrival: Arrival, end: Ended | None, block_size: int) -> None:
        hashes = [*arrival.blocks, *(end.blocks if end else ())]
        self._number = arrival.number
        self._known = [token for item in hashes for token in _tokens_of(item, block_size)]
        self.prompt = [self[position] for position in range(arrival.num_tokens)]

    def __getitem__(self, position: int) -> int:
        if position < len(self._known):
            return self._known[position]
        # Of no full block, so nobody else can have it.
        return int.from_bytes(sha256(f"{self._number}:{position}".encode()).digest()[:4], "little")


class _Replay:
    """One scheduler, and the calls it gets."""

    def __init__(self, config: SchedulerConfig, block_size: int, ends: _Ends) -> None:
        self.lines: list[Line] = []
        self._scheduler = build_scheduler(config, vocab_size=_VOCAB_SIZE)
        self._recorder = Recorder(self.lines.append, block_size=block_size)
        self._block_size = block_size
        """The recorded one: the hashes are over blocks of that size."""
        self._ends = ends
        self._tokens: dict[str, _Tokens] = {}
        self._requests: dict[str, Request] = {}
        self._in_flight: deque[StepPlan] = deque()

    def take(self, line: Line) -> None:
        match line:
            case Added():
                self._add(line)
            case Finished():
                self._finish(line)
            case Planned():
                self._plan(line)
            case Applied():
                self._collect(line)
            case _:
                self.lines.append(line)

    def _add(self, line: Added) -> None:
        requests = [self._request(arrival) for arrival in line.requests]
        try:
            self._scheduler.add(requests, line.time_s)
        except (InvalidRequest, QueueFull) as error:
            numbers = [arrival.number for arrival in line.requests]
            self.lines.append(Refused(time_s=line.time_s, numbers=numbers, error=str(error)))
        else:
            self._requests.update((request.request_id, request) for request in requests)
            self._recorder.added(requests, line.time_s)

    def _request(self, arrival: Arrival) -> Request:
        """Its id is its number in the recording: other than ids, numbers are never used again."""
        number, end = arrival.number, self._ends.by_number.get(arrival.number)
        tokens = self._tokens[str(number)] = _Tokens(arrival, end, self._block_size)
        stops: list[int] = []
        if end is not None and number in self._ends.by_stop_token:
            stops = [tokens[arrival.num_tokens + end.num_output_tokens - 1]]
        return Request(
            str(number),
            tokens.prompt,
            SamplingParams(
                max_tokens=arrival.max_tokens,
                min_tokens=arrival.min_tokens,
                prompt_logprobs=0 if arrival.prompt_logprobs else None,
                stop_token_ids=stops,
            ),
            arrival_s=arrival.arrival_s,
            priority=arrival.priority,
            tenant=arrival.tenant,
            cache_salt=arrival.salt,
            deadline_s=arrival.deadline_s,
            queue_timeout_s=arrival.queue_timeout_s,
            index=arrival.index,
        )

    def _finish(self, line: Finished) -> None:
        request_id, reason = str(line.ended.number), FinishReason(line.ended.reason)
        request = self._requests.get(request_id)
        if (
            reason is FinishReason.STOP
            and request is not None
            and request.num_output_tokens < line.ended.num_output_tokens
        ):
            return  # the text at which it is to stop is still to come
        if self._scheduler.finish(request_id, reason, line.time_s):
            self._recorder.finished(request_id, reason, line.time_s)

    def _plan(self, line: Planned) -> None:
        drafts = self._drafts(line.proposed)
        plan = self._scheduler.schedule(line.time_s, line.costs, drafts)
        self._recorder.planned(plan, line.time_s, line.costs, drafts)
        if plan.to_run:
            self._in_flight.append(plan)
            if not line.to_run:
                # The recording has no result for it, and no two are to be in flight for one.
                self._apply_up_to(plan.step, line.time_s, {}, {})

    def _drafts(self, proposed: Mapping[int, int]) -> dict[str, list[int]]:
        """As many as there were, all of them right: the result says how many are accepted."""
        drafts = {}
        for number, count in proposed.items():
            if (request := self._requests.get(str(number))) is not None:
                tokens, first = self._tokens[request.request_id], len(request.token_ids)
                drafts[request.request_id] = [tokens[first + i] for i in range(count)]
        return drafts

    def _collect(self, line: Applied) -> None:
        if line.failed is not None and self._in_flight:
            step = self._in_flight[0].step
            self._in_flight.clear()
            outcome = self._scheduler.fail(line.failed, line.time_s)
            self._note(outcome, line.time_s, step=step, failed=line.failed)
        elif line.step is not None:
            self._apply_up_to(line.step, line.time_s, line.errors, line.accepted)
        self._note(self._scheduler.flush(), line.time_s)

    def _apply_up_to(
        self, step: int, now: float, errors: Mapping[int, str], accepted: Mapping[int, int]
    ) -> None:
        while self._in_flight and self._in_flight[0].step <= step:
            plan = self._in_flight.popleft()
            result = self._result(plan, errors, accepted)
            outcome = self._scheduler.apply(result, now)
            self._note(outcome, now, step=plan.step, errors=result.errors)

    def _note(self, outcome: StepOutcome, now: float, **call: Any) -> None:
        self._recorder.applied(outcome, now, **call)
        for record in outcome.ended:
            del self._tokens[record.request_id], self._requests[record.request_id]

    def _result(
        self, plan: StepPlan, errors: Mapping[int, str], accepted: Mapping[int, int]
    ) -> StepResult:
        numbers = [int(chunk.request_id) for chunk in plan.chunks]
        failed = {
            index: ChunkError(errors[number])
            for index, number in enumerate(numbers)
            if number in errors
        }
        sampled = [
            () if index in failed else self._sampled(chunk, accepted.get(numbers[index], 0))
            for index, chunk in enumerate(plan.chunks)
        ]
        return StepResult(
            plan.step,
            tuple(tokens[-1] if tokens else None for tokens in sampled),
            accepted={i: tokens[:-1] for i, tokens in enumerate(sampled) if len(tokens) > 1},
            errors=failed,
            prompt_logprobs={
                index: _rows(chunk)
                for index, chunk in enumerate(plan.chunks)
                if chunk.prompt_rows is not None
            },
        )

    def _sampled(self, chunk: Chunk, num_accepted: int) -> tuple[int, ...]:
        """The drafts that are accepted and the token after; anything where the request has ended
        and this is discarded."""
        if chunk.sample is None:
            return ()
        tokens = self._tokens.get(chunk.request_id)
        if tokens is None:
            return (0,)
        first = chunk.end - chunk.num_drafts
        last = first + min(num_accepted, chunk.num_drafts)
        return tuple(tokens[position] for position in range(first, last + 1))


def _tokens_of(block_hash: str, block_size: int) -> array[int]:
    """Tokens that stand for the block; four bytes each."""
    return array("I", shake_128(block_hash.encode()).digest(4 * block_size))


def _rows(chunk: Chunk) -> tuple[TokenLogprobs, ...]:
    assert chunk.prompt_rows is not None
    return tuple(TokenLogprobs(token, 0.0, 1, ()) for token in chunk.prompt_rows.token_ids)
