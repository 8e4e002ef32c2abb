"""Drafts from a second, smaller model with the same vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headway.core.plan import Chunk, Executor, StepPlan
from headway.core.request import Request, RequestState

__all__ = ["DraftModelProposer"]


@dataclass(slots=True, eq=False)
class _Context:
    """What the draft model has computed of one request."""

    request: Request
    table: tuple[int, ...] = ()
    num_computed: int = 0
    """Tokens whose KV its blocks hold: known ones, then drafts."""
    num_known: int = 0
    """Known tokens when the last proposal began."""
    drafts: list[int] = field(default_factory=list)
    """Of the last proposal."""
    wanted: int = 0
    """Drafts that it is to have."""

    @property
    def goes_on(self) -> bool:
        """After a token that would end the request nothing is worth drafting."""
        drafts = self.drafts
        return 0 < len(drafts) < self.wanted and drafts[-1] not in self.request.stop_token_ids

    def begin(self, wanted: int) -> None:
        """Drafts that turned out wrong are to be computed over, and the last known token anew
        where it was one: drafts are sampled after it."""
        known, count = self.request.token_ids, min(self.num_known, self.num_computed)
        for draft in self.drafts[: self.num_computed - count]:
            if count == len(known) or known[count] != draft:
                break
            count += 1
        self.num_computed = min(count, len(known) - 1)
        self.num_known = len(known)
        self.drafts, self.wanted = [], wanted


class DraftModelProposer:
    """Implements `Proposer`: a model drafts with the request's own `Sample` and positions, so with
    the keys that its tokens are drawn with.

    It has KV blocks of its own, each of one request. They are free once the request ends or no
    longer runs; where there are too few a request gets no drafts.

    Args:
        executor: runs the draft model; nobody else submits to it.
        num_blocks: KV blocks of that executor.
        block_size: tokens per block.
        max_num_batched_tokens: most tokens of one plan: so many of those that it has not seen yet
            it computes in one proposal.
        max_position: context length of the draft model; longer requests get no drafts.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        max_position: int,
    ) -> None:
        self._executor = executor
        self._block_size = block_size
        self._budget = max_num_batched_tokens
        self._max_position = max_position
        self._num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._contexts: dict[Request, _Context] = {}
        self._step = 0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[str, tuple[int, ...]]:
        """Runs the draft model once for what it has not seen, and once for each further draft.

        After an exception nothing is taken to be computed.
        """
        for request in [r for r in self._contexts if r.state is not RequestState.RUNNING]:
            self._free += self._contexts.pop(request).table
        try:
            contexts = self._with_room(wanted)
            self._catch_up(contexts)
            while going := [context for context in contexts if context.goes_on]:
                self._run([(context, context.drafts[-1:]) for context in going])
        except BaseException:
            self._contexts.clear()
            self._free = list(range(self._num_blocks))
            raise
        return {
            context.request.request_id: tuple(context.drafts)
            for context in contexts
            if context.drafts
        }

    def _with_room(self, wanted: Iterable[tuple[Request, int]]) -> list[_Context]:
        """The contexts of those that have the positions and blocks for at least one draft."""
        contexts = []
        for request, count in wanted:
            num_known = len(request.token_ids)
            count = min(count, self._max_position - num_known + 1)
            context = self._contexts.get(request) or _Context(request)
            # The last draft is not computed.
            num_new = -(-(num_known + count - 1) // self._block_size) - len(context.table)
            if count < 1 or num_new > len(self._free):
                continue
            if num_new > 0:
                context.table += tuple(self._free[-num_new:])
                del self._free[-num_new:]
            context.begin(count)
            self._contexts[request] = context
            contexts.append(context)
        return contexts

    def _catch_up(self, contexts: list[_Context]) -> None:
        """Who lacks the least comes first: a long prompt makes nobody else wait."""
        rows, left = [], self._budget
        missing = {context: context.num_known - context.num_computed for context in contexts}
        for context in sorted(contexts, key=missing.__getitem__):
            start = context.num_computed
            tokens = context.request.token_ids[start : start + left]
            left -= len(tokens)
            if tokens:
                rows.append((context, tokens))
        self._run(rows)

    def _run(self, rows: Sequence[tuple[_Context, Sequence[int]]]) -> None:
        """Computes these tokens after what is computed, and drafts after what is known by then."""
        if not rows:
            return
        self._step += 1
        chunks = tuple(_chunk(context, tokens) for context, tokens in rows)
        result = self._executor.collect(self._executor.submit(StepPlan(self._step, chunks)))
        for (context, tokens), token_id in zip(rows, result.token_ids, strict=True):
            context.num_computed += len(tokens)
            if token_id is not None:
                context.drafts.append(token_id)
            else:  # to be computed further first; or its logits were NaN, and there is an end
                context.wanted = len(context.drafts)


def _chunk(context: _Context, tokens: Sequence[int]) -> Chunk:
    request, start = context.request, context.num_computed
    samples = start + len(tokens) >= context.num_known
    return Chunk(
        request.request_id,
        start,
        tuple(tokens),
        context.table,
        request.sample if samples else None,
    )
