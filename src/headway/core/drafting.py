"""Drafts: guesses at a request's next tokens, which the step that runs them checks (rule S14).

A draft is computed after the last known token as if it were known. It counts as computed, and is
known, once it was accepted; until then nothing but its chunk tells of it. Blocks that a step took
for drafts alone are given back with its result, and no other step is planned before that: so what
drafts take, nobody ever lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Chunk
from headway.core.request import Request
from headway.core.step import Step

__all__ = ["NO_DRAFTS", "draftable", "give_drafts"]

NO_DRAFTS: Mapping[str, Sequence[int]] = MappingProxyType({})


def draftable(running: Iterable[Request]) -> list[Request]:
    """Those that decode, have no token in flight, and may gain two or more."""
    return [
        request
        for request in running
        if request.num_pending == 0
        and request.num_computed_tokens + 1 == len(request.token_ids)
        and len(request.token_ids) + 1 < request.max_total_tokens
        and _may_have_drafts(request)
    ]


def give_drafts(
    step: Step,
    kv: KVCacheManager,
    running: Iterable[Request],
    drafts: Mapping[str, Sequence[int]],
) -> None:
    """The last phase: chunks of this step that end with a request's last known token go on with
    what was guessed to follow it, as far as what is left of budget and blocks goes.

    `drafts`: request id → tokens.
    """
    counted = False
    for request, chunk in list(step.chunks.items()):
        guessed = drafts.get(chunk.request_id, ())
        if not guessed or not _takes_drafts(request, chunk):
            continue
        most = min(request.max_total_tokens - 1 - chunk.end, step.budget_left, len(guessed))
        if chunk.end + most > request.held.num_slots and not counted:
            # From here on blocks are taken: what a decoding request will need for its next
            # token is not counted each step.
            for other in running:
                kv.expect(other)
            counted = True
        most = min(most, kv.room_for_drafts(request, chunk.end + most) - chunk.end)
        if most > 0:
            step.add_drafts(request, guessed[:most])


def _takes_drafts(request: Request, chunk: Chunk) -> bool:
    """It samples, and what it computes is known and gives nothing but that sample."""
    return (
        chunk.sample is not None
        and not chunk.follows_in_flight
        and chunk.prompt_rows is None
        and _may_have_drafts(request)
    )


def _may_have_drafts(request: Request) -> bool:
    """One `Sample` says how any number of its tokens are drawn, and they are all that it gets."""
    return request.draws_alike and request.params.logprobs is None
