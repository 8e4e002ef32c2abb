"""Writes down every call that changes a scheduler, and what came of it."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from os import PathLike

from headway.core.drafting import NO_DRAFTS
from headway.core.plan import ChunkError, StepPlan
from headway.core.request import FinishReason, Request
from headway.core.step import StepOutcome
from headway.metrics import Costs, StepRecord
from headway.record.lines import (
    VERSION,
    Added,
    Applied,
    Arrival,
    Ended,
    Finished,
    Header,
    Left,
    Line,
    Planned,
    Taken,
    block_hashes,
    encode,
)
from headway.record.setup import SchedulerConfig

__all__ = ["Recorder", "RecordingFile"]

logger = logging.getLogger(__name__)


class RecordingFile:
    """A file that a recording is written to, and closed with its last line; one that is there
    already is overwritten.

    What fails to be written ends the recording, not the engine.
    """

    def __init__(self, path: str | PathLike[str], config: SchedulerConfig) -> None:
        self._file = open(path, "wb")  # noqa: SIM115
        self._intact = True
        self._put(encode(Header(version=VERSION, config=config)))

    def __call__(self, line: Line) -> None:
        if self._intact:
            self._put(encode(line))
        if isinstance(line, Left):
            self.close()

    def _put(self, text: bytes) -> None:
        try:
            self._file.write(text)
            self._file.flush()  # the step that kills the process is to be in the file
        except OSError:
            self._intact = False
            logger.exception("the recording ends here")

    def close(self) -> None:
        self._file.close()


class Recorder:
    """Makes a line of each call. The engine calls it, after the scheduler, in the same order.

    Args:
        write: takes the lines.
        block_size: tokens per block of the scheduler's cache.
        content: put the token ids of prompts and outputs down too.
    """

    def __init__(
        self, write: Callable[[Line], None], *, block_size: int, content: bool = False
    ) -> None:
        self._write = write
        self._block_size = block_size
        self._content = content
        self._live: dict[int, tuple[Request, str]] = {}
        """Requests that have not ended, by number, with the last hash of the prompt."""
        self._numbers: dict[str, int] = {}
        self._gone: deque[tuple[int, str, int]] = deque()
        """What ended: the last plan made until then, and what `numbers` has for it. The records
        up to that plan may still tell of it."""
        self._in_flight: deque[Planned] = deque()
        self._last_step = 0

    def added(self, requests: Sequence[Request], now: float) -> None:
        """The scheduler accepted these requests."""
        self._write(Added(time_s=now, requests=[self._arrival(item) for item in requests]))

    def finished(self, request_id: str, reason: FinishReason, now: float) -> None:
        """A request was ended from outside."""
        ended = self._ended(self._numbers[request_id], reason)
        self._write(Finished(time_s=now, ended=ended))

    def planned(
        self,
        plan: StepPlan,
        now: float,
        costs: Costs | None,
        drafts: Mapping[str, Sequence[int]] = NO_DRAFTS,
    ) -> None:
        """The scheduler made a plan, which is not run yet; `costs` and `drafts` went into it."""
        numbers = self._numbers
        line = Planned(
            step=plan.step,
            time_s=now,
            costs=costs,
            chunks=[
                (numbers[chunk.request_id], chunk.start, chunk.num_tokens) for chunk in plan.chunks
            ],
            drafts={
                numbers[chunk.request_id]: chunk.num_drafts
                for chunk in (plan.chunks if drafts else ())
                if chunk.num_drafts
            },
            proposed={
                numbers[name]: len(tokens)
                for name, tokens in drafts.items()
                if name in numbers  # it may have ended meanwhile
            },
            zero_blocks=plan.zero_blocks,
            copies_out=plan.copies_out,
            copies_in=plan.copies_in,
        )
        self._last_step = plan.step
        if plan.to_run:
            self._in_flight.append(line)
        self._write(line)

    def applied(
        self,
        outcome: StepOutcome,
        now: float,
        *,
        step: int | None = None,
        errors: Mapping[int, ChunkError] | None = None,
        failed: str | None = None,
    ) -> None:
        """A result was applied, a failure was, or nothing had been run.

        Args:
            outcome: what it came to.
            now: when.
            step: number of the plan; None where nothing had been run.
            errors: of the result, by index of the chunk.
            failed: why the plan and those after it are void.
        """
        by_request: dict[int, str] = {}
        if errors:
            chunks = self._in_flight[0].chunks
            by_request = {chunks[index][0]: str(error) for index, error in errors.items()}
        accepted = {} if step is None or failed is not None else self._accepted(outcome)
        records = [self._taken(record) for record in outcome.records]
        ended = []
        if outcome.ended:
            ended = [
                self._ended(update.request.sequence, update.finish_reason)
                for update in outcome.updates
                if update.finish_reason is not None
            ]
        self._forget_the_gone()
        if step is not None or records or ended:
            self._write(
                Applied(
                    time_s=now,
                    step=step,
                    failed=failed,
                    errors=by_request,
                    accepted=accepted,
                    records=records,
                    ended=ended,
                )
            )

    def close(self) -> None:
        """The last line: what became of the requests that have not ended."""
        self._write(Left(unfinished=[self._ended(number, None) for number in list(self._live)]))

    def _arrival(self, request: Request) -> Arrival:
        params, prompt = request.params, request.token_ids
        hashes = block_hashes(prompt, self._block_size)
        self._live[request.sequence] = (request, hashes[-1] if hashes else "")
        self._numbers[request.request_id] = request.sequence
        salt = request.cache_salt
        return Arrival(
            number=request.sequence,
            request_id=request.request_id,
            arrival_s=request.arrival_s,
            num_tokens=len(prompt),
            blocks=hashes,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            priority=request.priority,
            tenant=request.tenant,
            deadline_s=request.deadline_s,
            queue_timeout_s=request.queue_timeout_s,
            index=request.index,
            salt=None if salt is None else sha256(salt.encode()).hexdigest()[:32],
            prompt_logprobs=params.prompt_logprobs is not None,
            constrained=params.structured_outputs is not None,
            token_ids=list(prompt) if self._content else None,
        )

    def _ended(self, number: int, reason: FinishReason | None) -> Ended:
        """Also forgets the request."""
        request, parent = self._live.pop(number)
        self._gone.append((self._last_step, request.request_id, number))
        known, num_prompt = request.token_ids, request.num_prompt_tokens
        since = num_prompt - num_prompt % self._block_size
        return Ended(
            number=number,
            reason="" if reason is None else reason.value,
            num_output_tokens=len(known) - num_prompt,
            blocks=block_hashes(known[since:], self._block_size, parent),
            token_ids=known[num_prompt:] if self._content else None,
        )

    def _forget_the_gone(self) -> None:
        """Who ended before the oldest plan in flight was made: no record tells of it any more."""
        oldest = self._in_flight[0].step if self._in_flight else self._last_step + 1
        while self._gone and self._gone[0][0] < oldest:
            _, request_id, number = self._gone.popleft()
            if self._numbers.get(request_id) == number:
                del self._numbers[request_id]

    def _accepted(self, outcome: StepOutcome) -> dict[int, int]:
        """Of the oldest plan's drafts, how many became tokens."""
        drafts = self._in_flight[0].drafts
        if not drafts:
            return {}
        gained = Counter(
            update.request.sequence for update in outcome.updates if update.token_id is not None
        )
        return {number: gained[number] - 1 for number in drafts if gained[number] > 1}

    def _taken(self, record: StepRecord) -> Taken:
        """Also forgets the plan."""
        numbers = self._numbers
        if self._in_flight and self._in_flight[0].step == record.step:
            chunks = self._in_flight.popleft().chunks
            if record.admissions:
                # By now an id may be another request's.
                at_plan = zip(record.chunks, chunks, strict=True)
                numbers = numbers | {chunk.request_id: given[0] for chunk, given in at_plan}
        admissions = [(numbers[name], *rest) for name, rest in record.admissions.items()]
        return Taken(
            step=record.step,
            admissions=admissions,
            num_running=record.num_running,
            waiting=dict(record.waiting),
            blocks_used=record.blocks_used,
            blocks_cached=record.blocks_cached,
            blocks_free=record.blocks_free,
            evictions=record.evictions,
            preemptions=dict(record.preemptions),
            recomputed_tokens=record.recomputed_tokens,
            discarded_tokens=record.discarded_tokens,
            num_accepted_tokens=record.num_accepted_tokens,
            failed=record.failed,
        )
