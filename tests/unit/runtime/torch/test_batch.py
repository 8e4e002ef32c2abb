from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from headway.core.plan import Chunk, StepPlan
from headway.runtime.torch.batch import Batch, BatchBuilder
from headway.runtime.torch.kv_store import KVStore
from tiny import TINY
from tiny_plans import chunk_of

CPU, BLOCK = torch.device("cpu"), 16
HEADS = 2 * TINY.num_kv_heads
TABLE = tuple(range(100, 132))


def build(windows: Collection[int | None], *chunks: Chunk) -> Batch:
    store = KVStore(TINY, num_blocks=200, block_size=BLOCK, device=CPU, dtype=torch.float32)
    builder = BatchBuilder(store, windows, device=CPU, dtype=torch.float32)
    return builder.build(StepPlan(0, chunks), [chunk.token_ids for chunk in chunks])


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
