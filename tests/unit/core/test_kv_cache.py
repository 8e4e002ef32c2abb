"""Blocks and the prefix cache; the names in brackets are the rules'."""

from __future__ import annotations

from array import array

import pytest

from driver import Driver
from headway.core import prefix_cache
from headway.core.block_pool import BlockPool
from headway.core.kv_cache import KVCacheManager
from headway.core.params import SamplingParams
from headway.core.request import Request

SHARED = list(range(100, 112))


def request(name: str, tokens: list[int], salt: str | None = None) -> Request:
    made = Request(name, tokens, SamplingParams(), arrival_s=0.0, cache_salt=salt)
    made.limit_to(len(tokens) + 16)
    return made


def manager(num_blocks: int = 8, **options: object) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=4, hash_secret=1, **options)  # type: ignore[arg-type]


def admit(
    kv: KVCacheManager, tokens: list[int], name: str = "r", salt: str | None = None
) -> Request:
    """Admits, computes and commits all of a request's tokens."""
    made = request(name, tokens, salt)
    hit = kv.lookup(made)
    made.num_computed_tokens = len(hit.blocks) * 4
    assert kv.admit(made, hit, len(tokens))
    made.num_computed_tokens = len(tokens)
    kv.expect(made)
    kv.commit(made)
    return made


def all_keys_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's key is its index in the chain, whatever it holds."""

    def index_of(pair: tuple[object, object]) -> int:
        return pair[0] + 1 if isinstance(pair[1], bytes) else 0  # type: ignore[operator]

    monkeypatch.setattr(prefix_cache, "hash", index_of, raising=False)


def hash_unless_second(monkeypatch: pytest.MonkeyPatch, tokens: bytes) -> None:
    """All blocks of these tokens have one key, whatever comes before them."""
    monkeypatch.setattr(
        prefix_cache, "hash", lambda pair: 5 if pair[1] == tokens else hash(pair), raising=False
    )


def test_k1_blocks_are_handed_out_shared_and_come_back() -> None:
    pool = BlockPool(3)
    assert sorted(pool.take(3)) == [0, 1, 2]
    assert (pool.num_free, pool.num_used) == (0, 3)
    assert pool.share([1]) == 0
    pool.release([1], keep=())
    assert not pool.is_free(1)
    pool.release([1], keep=())
    assert pool.is_free(1)
    pool.check()


def test_k4_unkept_blocks_are_reused_first_and_kept_ones_last() -> None:
    pool = BlockPool(4)
    a, b, c, _ = pool.take(4)
    assert pool.release([a, b, c], keep={a, c}) == 2
    assert pool.take(3) == [b, a, c]


def test_k4_a_requests_last_block_is_evicted_before_its_first() -> None:
    kv = manager(num_blocks=3)
    first = admit(kv, [*range(12)])
    kv.release(first)
    other = admit(kv, [50, 51, 52, 53], "other")
    assert kv.num_evictions == 1
    again = request("again", [*range(12), 99])
    assert len(kv.lookup(again).blocks) == 2
    kv.check([other])


def test_k4_a_free_block_that_loses_its_hash_is_reused_first() -> None:
    kv = manager(num_blocks=4)
    kv.release(admit(kv, SHARED[:8]))
    kept, lost = kv.lookup(request("x", SHARED[:9])).blocks
    kv.poison([lost])
    other = admit(kv, [9] * 3, "other")
    assert other.held.table == (lost,)
    assert kv.take_blocks_to_zero() == (lost,)
    assert kv.lookup(request("x", SHARED[:9])).blocks == (kept,)


def test_k5_a_hit_takes_its_block_out_of_the_middle_of_the_queue() -> None:
    pool = BlockPool(5)
    blocks = pool.take(5)
    pool.release(blocks, keep=blocks)
    assert pool.num_free_among(blocks[:2]) == 2
    assert pool.share([blocks[2]]) == 1
    assert pool.take(4) == [blocks[i] for i in (0, 1, 3, 4)]


def test_k2_the_same_tokens_are_found_below_the_same_prefix_alone() -> None:
    kv = manager()
    kv.release(admit(kv, [1, 2, 3, 4, 5, 6, 7, 8]))
    assert len(kv.lookup(request("same", [1, 2, 3, 4, 5, 6, 7, 8, 9])).blocks) == 2
    assert len(kv.lookup(request("half", [1, 2, 3, 4, 0, 0, 0, 0, 9])).blocks) == 1
    assert kv.lookup(request("moved", [5, 6, 7, 8, 1, 2, 3, 4, 9])).blocks == ()


def test_k2_a_salt_parts_equal_prompts() -> None:
    kv = manager()
    kv.release(admit(kv, SHARED, salt="one"))
    for salt, blocks in (("one", 2), ("two", 0), (None, 0)):
        assert len(kv.lookup(request("x", SHARED, salt)).blocks) == blocks


def test_k2_a_collision_of_keys_never_serves_anothers_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_keys_collide(monkeypatch)
    kv = manager()
    first = admit(kv, [1, 2, 3, 4, 5, 6, 7, 8], "first")
    assert kv.lookup(request("other", [1, 2, 3, 9, 5, 6, 7, 8, 9])).blocks == ()
    second = admit(kv, [1, 2, 3, 9, 5, 6, 7, 8], "second")
    kv.check([first, second])
    # Its own second block equals the cached one but for the parent, and is not taken for it.
    assert kv.lookup(request("other", [1, 2, 3, 9, 5, 6, 7, 8, 9])).blocks == ()
    assert len(kv.lookup(request("same", [1, 2, 3, 4, 5, 6, 7, 8, 9])).blocks) == 2


def test_k2_a_child_is_not_found_below_anothers_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    second = array("I", [5, 6, 7, 8]).tobytes()
    hash_unless_second(monkeypatch, second)
    kv = manager()
    kv.release(admit(kv, [1, 2, 3, 4, 5, 6, 7, 8], "first"))
    kv.release(admit(kv, [0, 0, 0, 0], "second"))
    assert len(kv.lookup(request("x", [0, 0, 0, 0, 5, 6, 7, 8, 9])).blocks) == 1


def test_k2_a_salt_is_compared_and_not_only_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    all_keys_collide(monkeypatch)
    kv = manager()
    kv.release(admit(kv, SHARED, salt="one"))
    assert kv.lookup(request("x", SHARED, "two")).blocks == ()
    assert len(kv.lookup(request("x", SHARED, "one")).blocks) == 2


def test_k2_a_later_block_with_a_key_that_is_present_stays_without() -> None:
    kv = manager()
    first, second = request("a", SHARED), request("b", SHARED)
    for made in (first, second):
        assert kv.admit(made, kv.lookup(made), len(SHARED))
    for made in (first, second):
        made.num_computed_tokens = len(SHARED)
        kv.expect(made)
        kv.commit(made)
    kv.check([first, second])
    kv.release(second)
    assert kv.num_cached == 0
    kv.release(first)
    assert kv.num_cached == 3


def test_k2_an_entry_whose_parent_was_evicted_makes_way_for_one_that_can_be_reached() -> None:
    kv = manager(num_blocks=4)
    a, b = request("a", SHARED[:8]), request("b", SHARED[:8])
    for made, size in ((a, 4), (b, 8)):
        assert kv.admit(made, kv.lookup(made), size)
    for made, size in ((a, 4), (b, 8)):
        made.num_computed_tokens = size
        kv.expect(made)
        kv.commit(made)
    # b's first block is a duplicate of a's; its second is a child of a's entry, and is held on to.
    kv.release(a)
    kv.release(admit(kv, [*range(8)], "filler"))
    assert len(kv.lookup(request("x", SHARED)).blocks) == 0
    again = admit(kv, SHARED[:8], "again")
    kv.check([b, again])
    assert len(kv.lookup(request("x", SHARED)).blocks) == 2


@pytest.mark.parametrize(("known", "blocks"), [(8, 1), (9, 2), (12, 2), (13, 3)])
def test_k3_a_hit_covers_whole_blocks_and_leaves_a_token_to_compute(
    known: int, blocks: int
) -> None:
    kv = manager()
    kv.release(admit(kv, [*range(16)]))
    assert len(kv.lookup(request("x", [*range(known)])).blocks) == blocks


def test_k6_an_allocation_that_does_not_fit_changes_nothing() -> None:
    kv = manager(num_blocks=4)
    kv.release(admit(kv, SHARED))
    holder = admit(kv, [7] * 5, "holder")
    before = (kv.num_used, kv.num_cached, kv.num_free, kv.num_evictions)
    late = request("late", [*SHARED, *range(20)])
    hit = kv.lookup(late)
    assert hit.blocks
    assert not kv.admit(late, hit, 12 + 20)
    assert not kv.extend(holder, 5 + 12)
    assert (kv.num_used, kv.num_cached, kv.num_free, kv.num_evictions) == before
    kv.check([holder])


def test_k6_hits_in_the_free_queue_count_when_an_allocation_is_tried() -> None:
    kv = manager(num_blocks=4)
    kv.release(admit(kv, SHARED[:8]))
    other = admit(kv, [3] * 3, "other")
    late = request("late", [*SHARED[:8], *range(5)])
    hit = kv.lookup(late)
    assert len(hit.blocks) == 2
    # Three blocks are free: two are the hits, and two more are wanted.
    assert not kv.admit(late, hit, 8 + 5)
    kv.check([other])
    assert kv.lookup(late) == hit


def test_k7_the_watermark_is_kept_from_new_requests_while_something_runs() -> None:
    kv = manager(num_blocks=10, watermark=0.2)
    holder = admit(kv, [1] * 20, "holder")
    waiting = request("w", [2] * 16)
    hit = kv.lookup(waiting)
    assert kv.held_up_by(waiting, hit, 16, idle=False) == "watermark"
    assert kv.held_up_by(waiting, hit, 16, idle=True) == ""
    assert kv.held_up_by(request("s", [2] * 12), hit, 12, idle=False) == ""
    assert kv.extend(holder, 20 + 20)


def test_k7_the_watermark_is_at_most_that_fraction() -> None:
    kv = manager(num_blocks=10, watermark=0.19)
    admit(kv, [1] * 20, "holder")
    waiting = request("w", [2] * 16)
    assert kv.held_up_by(waiting, kv.lookup(waiting), 16, idle=False) == ""


def test_k8_a_request_must_fit_beside_what_the_admitted_still_need() -> None:
    kv = manager(num_blocks=10)
    long = request("long", [1] * 28)
    assert kv.admit(long, kv.lookup(long), 8)
    kv.expect(long)
    waiting = request("w", [2] * 13)
    hit = kv.lookup(waiting)
    # 8 blocks are free, 5 of them promised to the rest of the long prompt.
    assert kv.held_up_by(waiting, hit, 4, idle=False) == "blocks"
    assert kv.held_up_by(request("s", [2] * 12), hit, 4, idle=False) == ""
    kv.release(long)
    loose = manager(num_blocks=10, reserve_full_prompt=False)
    assert loose.admit(long, loose.lookup(long), 8)
    assert loose.held_up_by(waiting, hit, 4, idle=False) == ""


def test_k8_hits_in_the_free_queue_cost_a_block_and_hits_in_use_none() -> None:
    kv = manager(num_blocks=4)
    holder = admit(kv, SHARED[:8], "holder")
    sharer = request("s", [*SHARED[:8], *range(8)])
    assert kv.held_up_by(sharer, kv.lookup(sharer), 16, idle=False) == ""
    kv.release(holder)
    other = admit(kv, [3] * 3, "other")
    hit = kv.lookup(sharer)
    assert len(hit.blocks) == 2
    assert kv.held_up_by(sharer, hit, 16, idle=False) == "blocks"
    kv.check([other])


def test_k10_cached_blocks_that_nobody_holds_do_not_count_as_used() -> None:
    kv = manager()
    kv.release(admit(kv, SHARED))
    assert (kv.num_used, kv.num_cached, kv.num_free) == (0, 3, 5)


def test_k9_check_finds_a_block_that_two_requests_write() -> None:
    kv = manager()
    a, b = admit(kv, [1] * 3, "a"), admit(kv, [2] * 3, "b")
    kv.check([a, b])
    b.held.blocks[0] = a.held.blocks[0]
    b.held.table = tuple(b.held.blocks)
    with pytest.raises(AssertionError):
        kv.check([a, b])


def test_caching_can_be_turned_off() -> None:
    d = Driver(caching=False)
    for name in ("a", "b"):
        d.add(name, SHARED)
        d.run()
    assert all(entry.hit_tokens == 0 == entry.lookup_tokens for r in d.records for entry in r.batch)


def test_outputs_are_found_too_when_a_chat_goes_on() -> None:
    d = Driver()
    d.add("first", SHARED, max_tokens=9)
    d.run()
    d.add("second", [*SHARED, *d.output("first"), 1, 2], max_tokens=2)
    d.run()
    # 12 + 9 tokens, the last of which was never computed: 5 full blocks.
    assert d.ended[-1].num_cached_tokens == 20
    assert d.output("second") == d.expected("second")
