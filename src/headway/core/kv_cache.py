"""Who holds which blocks: admission checks, allocation, hashing and release.

The manager joins the pool (who may write where) with the prefix cache (what is where).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.block_pool import BlockPool
from headway.core.prefix_cache import NO_HIT, Hit, PrefixCache
from headway.core.request import Request

__all__ = ["Holding", "KVCacheManager"]

_NEVER = 1 << 62


@dataclass(slots=True)
class Holding:
    """The blocks of one admitted request, which keeps it in `Request.held`."""

    blocks: list[int]
    table: tuple[int, ...]
    """`blocks` as the plans show it; rebuilt only when they change."""
    num_slots: int
    """Tokens that the blocks hold."""
    num_hashed: int
    """Leading blocks that were offered to the prefix cache."""
    hash_at: int
    """Tokens, computed and known, from which on the next block can be offered."""
    serial: int
    """Entry that stands for the last of the blocks offered."""
    reserved: bool
    """What is promised may not be used by anyone else (rule P4)."""
    promised: int = 0
    """Blocks still to come: for known tokens (rule K8), or for all that it may ever need (P4)."""


class KVCacheManager:
    """All blocks of one engine. Nothing is changed by a call that returns False."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        watermark: float = 0.0,
        reserve_full_prompt: bool = True,
        hash_secret: int = 0,
    ) -> None:
        """
        Args:
            num_blocks: blocks in the pool.
            block_size: tokens per block.
            enable_prefix_caching: whether full blocks are hashed and looked up.
            watermark: fraction of the blocks that new and preempted requests leave free (K7).
            reserve_full_prompt: admit only what fits with all its known tokens (K8), not what
                fits with its first chunk.
            hash_secret: mixed into every key, so that keys cannot be foreseen.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.reserve_full_prompt = reserve_full_prompt
        self.num_evictions = 0
        """Cached blocks taken for new tokens, ever."""
        self.watermark_blocks = int(watermark * num_blocks)
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache(num_blocks, block_size, hash_secret)
        self._promised = 0
        """Sum of what the holders are promised."""
        self._reserved = 0
        """Of that, what is reserved."""
        self._num_cached = 0
        """Blocks in the free queue that a lookup finds, counted as they change."""
        self._dirty: set[int] = set()
        """Blocks that may hold NaN; zeroed by the plan that next takes them (rule A3)."""
        self._to_zero: list[int] = []

    # ------------------------------------------------------------------ figures

    @property
    def num_used(self) -> int:
        """Blocks that requests hold (rule K10)."""
        return self._pool.num_used

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and a lookup can still find."""
        return self._num_cached

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and no lookup finds."""
        return self._pool.num_free - self._num_cached

    # ---------------------------------------------------------------- admission

    def may_read(self, request: Request) -> bool:
        """Whether the prefix cache is asked: not where prompt tokens are to be computed for
        their log-probabilities (rule K3)."""
        return self.enable_prefix_caching and not request.wants_prompt_rows

    def lookup(self, request: Request) -> Hit:
        """The cached prefix the request may use: whole blocks, one token left over to compute.

        What an earlier lookup found stands as long as no block was forgotten since.
        """
        if not self.may_read(request):
            return NO_HIT
        most = (len(request.token_ids) - 1) // self.block_size
        epoch, hit = request.found or (-1, NO_HIT)
        known = hit if epoch == self._cache.num_forgotten else NO_HIT
        hit = self._cache.lookup(request, most, known)
        request.found = (self._cache.num_forgotten, hit)
        return hit

    def next_key(self, request: Request, hit: Hit) -> int | None:
        """Key of the block that a request lacks after its hit and may read; None: there is none."""
        index = len(hit.blocks)
        if not self.may_read(request) or index >= (len(request.token_ids) - 1) // self.block_size:
            return None
        return self._cache.keys(request, index + 1)[index]

    def prompt_keys(self, request: Request) -> list[int]:
        """Keys of all full blocks of known tokens."""
        count = len(request.token_ids) // self.block_size
        return self._cache.keys(request, count)[:count]

    def spare(self, request: Request, hit: Hit, end: int, *, reserve: bool = False) -> int:
        """Blocks that nobody is promised once the request is admitted; negative: too few.

        `end`: of its first chunk; `reserve`: all it may ever need is to be kept for it (rule P4).
        """
        promised = self._reserved
        if self.reserve_full_prompt:
            end, promised = request.num_tokens_to_compute, self._promised
        if reserve:
            end = request.num_wanted_tokens
        needed = self._blocks_for(end) - len(hit.blocks) + self._num_revived(hit)
        return self._pool.num_free - promised - needed

    def held_up_by(
        self, request: Request, hit: Hit, end: int, *, idle: bool, reserve: bool = False
    ) -> str:
        """Why the request cannot be admitted now: `blocks`, `watermark` (K7), or nothing.

        `idle`: nothing else runs. For the others see `spare`.
        """
        spare = self.spare(request, hit, end, reserve=reserve)
        if spare < 0:
            return "blocks"
        return "watermark" if spare < self.watermark_blocks and not idle else ""

    def admit(self, request: Request, hit: Hit, end: int, *, reserve: bool = False) -> bool:
        """Gives the request its hits and blocks for the tokens up to `end`; all or nothing.

        `expect` is to follow once they are granted.
        """
        assert request.held is None
        num_hits = len(hit.blocks)
        num_new = max(0, self._blocks_for(end) - num_hits)
        if num_new + self._num_revived(hit) > self._pool.num_free - self._reserved:
            return False
        self._num_cached -= self._pool.share(hit.blocks)
        num_slots = num_hits * self.block_size
        hash_at = num_slots + self.block_size if self.enable_prefix_caching else _NEVER
        request.held = held = Holding(
            list(hit.blocks), hit.blocks, num_slots, num_hits, hash_at, hit.serial, reserve
        )
        self._grow(held, num_new)
        return True

    # ------------------------------------------------------------ while running

    def extend(self, request: Request, end: int) -> bool:
        """Makes room for the tokens up to `end`; all of it or nothing (rule K6).

        `expect` is to follow once they are granted.
        """
        held = request.held
        num_new = self._blocks_for(end) - len(held.blocks)
        others = self._reserved - held.promised if held.reserved else self._reserved
        if num_new > self._pool.num_free - others:
            return False
        if num_new > 0:
            self._grow(held, num_new)
        return True

    def room_for_drafts(self, request: Request, end: int) -> int:
        """Makes room for tokens up to `end`, as far as free blocks go that nobody counts on: none
        that another is promised (K8, P4), none of the watermark (K7). Up to where there is room.

        What everybody is promised is to be up to date.
        """
        held: Holding = request.held
        spare = self._pool.num_free - self._promised
        if spare < 0:
            return held.num_slots
        room = held.promised + max(0, spare - self.watermark_blocks)
        num_new = min(self._blocks_for(end) - len(held.blocks), room)
        if num_new > 0:
            self._grow(held, num_new)
            self.expect(request)
        return held.num_slots

    def drop_rejected(self, request: Request) -> None:
        """Gives back the blocks past what is computed: rejected drafts alone are in them.

        `expect` is to follow.
        """
        held: Holding = request.held
        num_blocks = self._blocks_for(request.num_computed_tokens)
        if num_blocks < len(held.blocks):
            assert held.num_hashed <= num_blocks, "drafts are never hashed"
            self._pool.release(reversed(held.blocks[num_blocks:]), keep=())
            del held.blocks[num_blocks:]
            self._set_table(held)

    def expect(self, request: Request) -> None:
        """Counts the blocks that the request still needs (rules K8, P4)."""
        held = request.held
        end = request.num_wanted_tokens if held.reserved else request.num_tokens_to_compute
        more = max(0, self._blocks_for(end) - len(held.blocks)) - held.promised
        held.promised += more
        self._promised += more
        if held.reserved:
            self._reserved += more

    def commit(self, request: Request) -> None:
        """Makes the blocks findable that are full, computed and known."""
        held: Holding = request.held
        num_tokens = min(request.num_computed_tokens, len(request.token_ids))
        if num_tokens < held.hash_at:
            return
        first, held.num_hashed = held.num_hashed, num_tokens // self.block_size
        blocks = held.blocks[first : held.num_hashed]
        serial, dropped = self._cache.register(request, first, blocks, held.serial)
        if serial is None:
            held.hash_at = _NEVER
        else:
            held.serial = serial
            held.hash_at = (held.num_hashed + 1) * self.block_size
        for block in dropped:
            self._lost_key(block)

    # ------------------------------------------------------------------ release

    def num_freed_by(self, request: Request, hit: Hit) -> int:
        """Blocks that `spare` would count more if the request gave its own up; those shared with
        others, or with the hit of the one that is to come, free nothing."""
        held: Holding = request.held
        refs, kept = self._pool.refs, set(hit.blocks)
        alone = sum(refs(block) == 1 and block not in kept for block in held.blocks)
        return alone + (held.promised if self.reserve_full_prompt or held.reserved else 0)

    def num_shared_tokens(self, request: Request) -> int:
        """Tokens at its beginning that lie in blocks of others too: those stay to be found."""
        held = request.held
        count = 0
        while count < held.num_hashed and self._pool.refs(held.blocks[count]) > 1:
            count += 1
        return count * self.block_size

    def release(self, request: Request, *, num_valid_tokens: int | None = None) -> None:
        """Takes all blocks back; hashed ones stay findable, the last to be evicted first (K4).

        `num_valid_tokens`: the KV of later tokens will never be computed, so what was
        hashed of it is forgotten (rule S6).
        """
        held: Holding = request.held
        request.held = None
        request.quiet_until_computed = request.quiet_until_known = 0
        self._promised -= held.promised
        if held.reserved:
            self._reserved -= held.promised
        if num_valid_tokens is not None:
            for block in held.blocks[num_valid_tokens // self.block_size : held.num_hashed]:
                self.forget(block)
        self._num_cached += self._pool.release(reversed(held.blocks), self._cache.blocks)

    def forget_written(self, table: tuple[int, ...], start: int, end: int) -> None:
        """A chunk of positions start … end − 1 was dropped: what it wrote is not to be found."""
        for block in table[start // self.block_size : self._blocks_for(end)]:
            self.forget(block)

    def poison(self, blocks: Iterable[int]) -> None:
        """The blocks hold NaN: not to be found, and zeroed before anyone reuses them."""
        for block in blocks:
            self.forget(block)
            self._dirty.add(block)

    def take_blocks_to_zero(self) -> tuple[int, ...]:
        """Poisoned blocks handed out since the last call; the plan being made zeroes them."""
        if not self._to_zero:
            return ()
        blocks, self._to_zero = tuple(self._to_zero), []
        return blocks

    # ------------------------------------------------------------------- inside

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_revived(self, hit: Hit) -> int:
        """Hits that lie in the free queue: they cost a block like a new one (rule K8)."""
        return self._pool.num_free_among(hit.blocks)

    def _grow(self, held: Holding, num_new: int) -> None:
        blocks = self._pool.take(num_new)
        if self._num_cached:
            num_evicted = sum(map(self._cache.forget, blocks))
            self._num_cached -= num_evicted
            self.num_evictions += num_evicted
        if self._dirty:
            self._to_zero += [block for block in blocks if block in self._dirty]
            self._dirty.difference_update(blocks)
        held.blocks += blocks
        self._set_table(held)

    def _set_table(self, held: Holding) -> None:
        held.table = tuple(held.blocks)
        held.num_slots = len(held.blocks) * self.block_size

    def forget(self, block: int) -> None:
        """No lookup finds the block from here on."""
        if self._cache.forget(block):
            self._lost_key(block)

    def _lost_key(self, block: int) -> None:
        if self._pool.is_free(block):
            self._num_cached -= 1
            self._pool.reuse_first(block)

    def check(self, holders: Iterable[Request]) -> None:
        """Rule K9; `holders` are the admitted requests. Costs O(blocks)."""
        self._pool.check()
        self._cache.check()
        refs = [0] * self.num_blocks
        promised = reserved = 0
        for request in holders:
            held: Holding = request.held
            assert held is not None, "admitted requests hold blocks"
            assert held.table == tuple(held.blocks)
            assert held.num_slots == len(held.blocks) * self.block_size
            assert len(set(held.blocks)) == len(held.blocks), f"{request} holds a block twice"
            promised += held.promised
            reserved += held.promised * held.reserved
            num_full = request.num_computed_tokens // self.block_size
            num_known = len(request.token_ids) // self.block_size
            assert held.num_hashed <= min(num_full, num_known), "only what is known is hashed"
            for index, block in enumerate(held.blocks):
                refs[block] += 1
                if index >= num_full:
                    assert self._pool.refs(block) == 1, f"block {block} is not full and is shared"
        for block, count in enumerate(refs):
            assert self._pool.refs(block) == count, f"block {block}: {count} tables hold it"
        assert (self._promised, self._reserved) == (promised, reserved)
        assert self._reserved <= self._pool.num_free, "what is reserved is there"
        cached_free = sum(
            self._pool.is_free(block) and block in self._cache.blocks
            for block in range(self.num_blocks)
        )
        assert self._num_cached == cached_free
        assert not self._to_zero, "a plan was closed without zeroing poisoned blocks"
