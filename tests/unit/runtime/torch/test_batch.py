from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from headway.core.plan import Chunk, StepPlan
from headway.runtime.inputs import output_rows
from headway.runtime.torch.batch import Batch, BatchBuilder
from headway.runtime.torch.kv_store import KVStore
from tiny import TINY
from tiny_plans import chunk_of

CPU, BLOCK = torch.device("cpu"), 16
HEADS = 2 * TINY.num_kv_heads
QUERIES = TINY.num_heads // TINY.num_kv_heads
TABLE = tuple(range(100, 132))


def build(windows: Collection[int | None], *chunks: Chunk) -> Batch:
    store = KVStore(TINY, num_blocks=200, block_size=BLOCK, device=CPU, dtype=torch.float32)
    builder = BatchBuilder(store, windows, queries=QUERIES, device=CPU, dtype=torch.float32)
    plan = StepPlan(0, chunks)
    return builder.build(plan, [chunk.token_ids for chunk in chunks], output_rows(plan))


def decode(context: int, table: tuple[int, ...] = TABLE) -> Chunk:
    return chunk_of(str(context), [1], table, start=context - 1)


def test_windows_that_no_context_exceeds_share_the_groups_of_full_attention() -> None:
    groups = build((None, 40, 41, 500), decode(41), decode(7)).groups
    assert groups[None] is groups[41] is groups[500]
    assert groups[40] is not groups[None]


@pytest.mark.parametrize("context", range(50, 50 + BLOCK))
@pytest.mark.parametrize("window", [1, 2, 16, 17, 18, 33])
def test_a_decode_row_gathers_only_the_blocks_that_its_window_can_see(
    context: int, window: int
) -> None:
    groups = build((None, window), decode(context)).groups
    (full,), (group,) = groups[None], groups[window]
    assert len(full.kv_rows) == HEADS * -(-context // BLOCK)
    blocks = group.kv_rows[: len(group.kv_rows) // HEADS].tolist()
    assert blocks == list(TABLE[: -(-context // BLOCK)][-len(blocks) :])
    assert len(blocks) <= -(-(window - 1) // BLOCK) + 1
    assert group.mask is not None
    first = (TABLE.index(blocks[0])) * BLOCK
    seen = [first + i for i in (group.mask[0, 0, 0] == 0).nonzero()[:, 0].tolist()]
    assert seen == list(range(context - window, context))


def test_rows_of_different_length_are_masked_each_by_its_own_window() -> None:
    other = tuple(range(40, 60))
    chunks = decode(300), decode(100, other), decode(3, (9,))
    (group,) = build((20,), *chunks).groups[20]
    assert group.mask is not None
    assert group.kv_rows[:9].tolist() == [116, 117, 118, 44, 45, 46, 9, 9, 9]
    seen = [(row == 0).nonzero()[:, 0].tolist() for row in group.mask[0, :, 0]]
    assert seen == [list(range(24, 44)), list(range(16, 36)), [0, 1, 2]]


def test_a_prefill_chunk_is_cut_where_its_window_makes_it_worth_it() -> None:
    chunk = chunk_of("long", [1] * 300, TABLE, start=120)
    groups = build((None, 20), chunk).groups
    (full,) = groups[None]
    assert (full.context, full.rows) == (420, slice(0, 300))
    one, two = groups[20]
    assert (one.rows, two.rows) == (slice(0, 256), slice(256, 300))
    assert (one.context, two.context) == (376 - 96, 420 - 352)
    for group, start in ((one, 120 - 96), (two, 376 - 352)):
        assert group.mask is not None
        rows, keys = torch.meshgrid(
            torch.arange(group.mask.shape[2]) + start, torch.arange(group.context), indexing="ij"
        )
        assert torch.equal(group.mask[0, 0] == 0, (keys <= rows) & (keys > rows - 20))


def test_a_chunk_that_begins_its_sequence_needs_no_mask_but_for_a_window() -> None:
    groups = build((None, 20, 30), chunk_of("a", [1] * 30, TABLE)).groups
    assert groups[None][0].mask is None
    assert groups[30] is groups[None]
    assert groups[20][0].mask is not None


def test_chunks_of_equally_few_tokens_attend_together_each_row_up_to_its_own() -> None:
    other, third = tuple(range(40, 60)), tuple(range(60, 80))
    chunks = (
        chunk_of("a", [1] * 3, other, start=40),
        decode(7, (9,)),
        chunk_of("b", [1] * 3, TABLE, start=58),
        chunk_of("c", [1] * 2, third, start=5),
        chunk_of("d", [1] * 9, (8,)),
        chunk_of("e", [1] * 9, (7,)),
    )
    batch = build((None, 20), *chunks)
    assert batch.positions[:6].tolist() == [6, 5, 6, 58, 59, 60]
    for window in (None, 20):
        groups = batch.groups[window]
        shapes = [(group.num_sequences, group.tokens_each, group.rows.start) for group in groups]
        assert shapes == [(1, 1, 0), (1, 2, 1), (2, 3, 3), (1, 9, 9), (1, 9, 18)]
        assert [group.is_prefill for group in groups] == [False, True, False, True, True]
        drafted = groups[2]
        assert drafted.mask is not None
        assert drafted.mask.shape == (1, 2, 3 * QUERIES, drafted.context)
        blocks = drafted.kv_rows[: len(drafted.kv_rows) // HEADS].view(2, -1)
        for i, (chunk, table) in enumerate(((chunks[2], TABLE), (chunks[0], other))):
            first = table.index(int(blocks[i, 0])) * BLOCK
            for row in range(3 * QUERIES):
                last = chunk.start + row // QUERIES
                seen = (first + (drafted.mask[0, i, row] == 0).nonzero()[:, 0]).tolist()
                assert seen == list(range(max(0, last + 1 - (window or 100)), last + 1))
