"""What a scheduler reports, held against what must come of every request (docs/invariants.md)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from headway.core.plan import Chunk, StepPlan
from headway.core.request import FinishReason, Request
from headway.core.step import StepOutcome, Update
from headway.metrics import RequestRecord, StepRecord
from headway.sim.executor import expected_tokens
from headway.sim.situations import Setup, guess

__all__ = ["Case", "Ledger"]

_ENDED_WELL = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class Case:
    """One accepted request: what it must come to, and what was reported so far."""

    request: Request
    prompt: list[int]
    expected: list[int]
    """Its output, had it been alone and nothing gone wrong."""
    expected_rows: list[int]
    """Prompt tokens whose log-probabilities it asks for."""
    foretold: list[int]
    """The same and more, had nothing ended it: what drafts are made of."""
    output: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    told: bool = False
    """The record of its end was given."""


class Ledger:
    """The accepted requests, and the sums of what the records of the steps say.

    Attributes:
        cases: every accepted request, by id.
        live: those whose end was not reported.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.cases: dict[str, Case] = {}
        self.live: dict[str, Case] = {}
        self._again: dict[int, int] = {}
        """Step → tokens of its plan that had been computed before."""
        self._new_prompt: dict[int, int] = {}
        """Step → tokens of its plan that are the prompt's, and had not."""
        self._drafted: dict[int, list[Chunk]] = {}
        """Step → its chunks with drafts."""
        self._num_output_tokens = 0
        self._tokens_given = self._tokens_again = self._num_preempted = self._num_evicted = 0
        self._num_rejected = 0

    def accept(self, request: Request) -> None:
        prompt, params = list(request.token_ids), request.params
        most = request.max_total_tokens - len(prompt)
        expected = expected_tokens(
            prompt, most, self._setup.vocab_size, request.stop_token_ids, params.min_tokens
        )
        rows = [] if params.prompt_logprobs is None else prompt[1:]
        foretold = []
        if self._setup.num_drafts:
            most += self._setup.num_drafts
            foretold = expected_tokens(prompt, most, self._setup.vocab_size)
        case = Case(request, prompt, expected, rows, foretold)
        self.cases[request.request_id] = self.live[request.request_id] = case

    def unfinished(self) -> list[Request]:
        """Those that have not ended. (A timeout is reported after the plan that finds it.)"""
        return [case.request for case in self.live.values() if case.request.finish_reason is None]

    def abort(self, name: str) -> None:
        self.live.pop(name).reason = FinishReason.ABORT

    def plan(self, plan: StepPlan) -> None:
        """A plan was made: none of its chunks is empty or goes past the end of its request, and
        what it computes again is to be in the record."""
        again = new_prompt = 0
        for chunk in plan.chunks:
            case = self.cases[chunk.request_id]
            request, num_prompt = case.request, len(case.prompt)
            last = max(num_prompt, request.max_total_tokens - 1)
            assert chunk.start < chunk.end <= last, "I6: nothing to compute, or past the end"
            end = chunk.end - chunk.num_drafts
            again += max(0, min(end, request.num_computed_once) - chunk.start)
            new_prompt += max(0, min(end, num_prompt) - max(chunk.start, request.num_computed_once))
        self._again[plan.step], self._new_prompt[plan.step] = again, new_prompt
        self._drafted[plan.step] = [chunk for chunk in plan.chunks if chunk.num_drafts]

    def proposals(self) -> dict[str, list[int]]:
        """Drafts, some of them right, for every request: those too that may not have any."""
        if not self._setup.num_drafts:
            return {}
        return {
            name: guess(
                case.foretold[len(case.output) :],
                self._setup.num_drafts,
                (case.request.sequence, len(case.output), case.request.num_preemptions),
            )
            for name, case in self.live.items()
        }

    def enter(self, outcome: StepOutcome) -> None:
        self._enter_drafts(outcome)
        for update in outcome.updates:
            self._enter_update(update)
        for ended in outcome.ended:
            self._enter_end(ended)
        for record in outcome.records:
            self._enter_step(record)

    def _enter_drafts(self, outcome: StepOutcome) -> None:
        """Drafts were accepted as far as they are right, and up to the end of their request."""
        gained = Counter(u.request.request_id for u in outcome.updates if u.token_id is not None)
        for record in outcome.records:
            num_drafts = num_accepted = 0
            for chunk in self._drafted.pop(record.step):
                num_drafts += chunk.num_drafts
                if record.failed or not (num_gained := gained[chunk.request_id]):
                    continue
                case = self.cases[chunk.request_id]
                to_come = case.foretold[len(case.output) :]
                pairs = zip(chunk.token_ids[-chunk.num_drafts :], to_come, strict=False)
                num_right = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
                due = case.expected[len(case.output) :][: num_right + 1]
                assert num_gained == len(due), "I19: too many drafts accepted, or too few"
                num_accepted += num_gained - 1
            assert record.num_draft_tokens == num_drafts, "I14: drafts"
            assert record.num_accepted_tokens == num_accepted, "I14: drafts accepted"
            assert record.discarded_tokens >= num_drafts - num_accepted, "I14: drafts rejected"
            self._num_rejected += num_drafts - num_accepted

    def _enter_update(self, update: Update) -> None:
        case = self.cases[update.request.request_id]
        assert case.reason is None, "I5: something came of a request that had ended"
        if update.token_id is not None:
            index = len(case.output)
            assert case.expected[index : index + 1] == [update.token_id], "I10: a wrong token"
            case.output.append(update.token_id)
        if update.prompt_logprobs:
            index, rows = len(case.rows), [row.token_id for row in update.prompt_logprobs]
            assert case.expected_rows[index : index + len(rows)] == rows, "I11: a wrong row"
            case.rows += rows
        if case.output or update.finish_reason in _ENDED_WELL:
            assert len(case.rows) == len(case.expected_rows), "I11: a row is late"
        if update.finish_reason is not None:
            case.reason = update.finish_reason
            del self.live[update.request.request_id]

    def _enter_end(self, record: RequestRecord) -> None:
        case = self.cases[record.request_id]
        request = case.request
        assert not case.told, "I5: it ended twice"
        case.told = True
        assert case.reason == request.finish_reason == record.finish_reason, "I5: another reason"
        assert request.token_ids == case.prompt + case.output, "I10: a token that was not told"
        assert case.reason not in _ENDED_WELL or case.output == case.expected, "I10: ended early"
        if case.reason is FinishReason.TIMEOUT:
            assert record.first_scheduled_s is None, "I15: a timeout after the admission"
            assert request.queue_timeout_s is not None, "I15: a timeout that nobody asked for"
            expires_s = request.arrival_s + request.queue_timeout_s
            assert record.finished_s >= expires_s, "I15: a timeout too early"
        if case.reason is FinishReason.ERROR:
            assert self._setup.fault_rate, "I5: an error of nobody's making"

    def _enter_step(self, record: StepRecord) -> None:
        """The figures of a step add up."""
        blocks = record.blocks_used + record.blocks_cached + record.blocks_free
        assert blocks == self._setup.num_blocks, "I14: blocks"
        given = sum(chunk.num_tokens for chunk in record.chunks)
        assert record.num_tokens == given <= record.budget, "I14: tokens"
        assert record.recomputed_tokens == self._again.pop(record.step), "I14: computed again"
        assert 0 <= record.discarded_tokens <= given, "I14: discarded tokens"
        assert not record.failed or not record.num_output_tokens, "I14: output of a failed step"
        self._tokens_given += given
        new_prompt = self._new_prompt.pop(record.step)
        assert record.num_prompt_tokens == new_prompt, "I14: prompt tokens"
        self._num_output_tokens += record.num_output_tokens
        self._tokens_again += record.recomputed_tokens
        self._num_preempted += sum(record.preemptions.values())
        self._num_evicted += record.evictions

    def close(self, num_evictions: int) -> None:
        """Nothing is left to run; `num_evictions`: by the cache's own count."""
        assert not self.live, "I7: a request did not end"
        assert all(case.told for case in self.cases.values()), "I5: an end was not told"
        requests = [case.request for case in self.cases.values()]
        assert self._num_evicted == num_evictions, "I14: evictions"
        num_preempted = sum(r.num_preemptions for r in requests)
        assert self._num_preempted == num_preempted, "I14: preemptions"
        num_output = sum(len(case.output) for case in self.cases.values())
        assert self._num_output_tokens == num_output, "I14: output tokens"
        if not self._setup.caching:
            once = sum(max(r.num_computed_once, r.num_computed_tokens) for r in requests)
            given = self._tokens_given - self._num_rejected
            assert given - self._tokens_again == once, "I14: tokens computed again"
