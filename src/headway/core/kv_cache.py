"""Who holds which blocks: admission checks, allocation, hashing and release.

The manager joins the pool (who may write where) with the prefix cache (what is where).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.block_pool import BlockPool
from headway.core.prefix_cache import NO_HIT, Hit, PrefixCache
from headway.core.request import Request

__all__ = ["KVCacheManager"]


@dataclass(slots=True)
class _Held:
    """The blocks of one admitted request."""

    blocks: list[int]
    table: tuple[int, ...]
    """`blocks` as the plans show it; rebuilt only when it grows."""
    num_hashed: int
    """Leading blocks that were offered to the prefix cache."""
    serial: int | None
    """Entry that stands for the last of those; None: the chain cannot be continued."""
    promised: int = 0
    """Blocks still to come for tokens that are known (rule K8)."""


class KVCacheManager:
    """All blocks of one engine. Nothing is changed by a call that returns False or a reason."""

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
        self._watermark_blocks = int(watermark * num_blocks)
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache(block_size, hash_secret)
        self._held: dict[str, _Held] = {}
        self._promised = 0
        """Sum of what the held ones are promised."""
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
        """The cached prefix the request may use: whole blocks, one token left over to compute."""
        if not self.may_read(request):
            return NO_HIT
        return self._cache.lookup(request, (len(request.token_ids) - 1) // self.block_size)

    def held_up_by(self, request: Request, hit: Hit, num_tokens: int, *, idle: bool) -> str | None:
        """Why the request cannot be admitted now: `blocks`, `watermark`, or None if it can.

        `num_tokens` is its first chunk, after the hit; `idle`: nothing else runs.
        """
        end = len(hit.blocks) * self.block_size + num_tokens
        promised = 0
        if self.reserve_full_prompt:
            end = request.num_tokens_to_compute
            promised = self._promised
        needed = self._blocks_for(end) - len(hit.blocks) + self._num_revived(hit)
        spare = self._pool.num_free - promised - needed
        if spare < 0:
            return "blocks"
        if spare < self._watermark_blocks and not idle:
            return "watermark"
        return None

    def admit(self, request: Request, hit: Hit, num_tokens: int) -> bool:
        """Gives the request its hits and blocks for `num_tokens` more; all of it or nothing.

        `expect` is to follow once they are granted."""
        assert request.request_id not in self._held
        num_new = self._blocks_for(len(hit.blocks) * self.block_size + num_tokens) - len(hit.blocks)
        if num_new + self._num_revived(hit) > self._pool.num_free:
            return False
        for block in hit.blocks:
            self._share(block)
        held = _Held(list(hit.blocks), hit.blocks, len(hit.blocks), hit.serial)
        self._held[request.request_id] = held
        self._grow(held, num_new)
        return True

    # ------------------------------------------------------------ while running

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Makes room for `num_tokens` after the computed ones; all of it or nothing (rule K6).

        `expect` is to follow once they are granted."""
        held = self._held[request.request_id]
        num_new = self._blocks_for(request.num_computed_tokens + num_tokens) - len(held.blocks)
        if num_new > self._pool.num_free:
            return False
        if num_new > 0:
            self._grow(held, num_new)
        return True

    def expect(self, request: Request) -> None:
        """Counts the blocks that the request's known tokens still need (rule K8)."""
        held = self._held[request.request_id]
        promised = max(0, self._blocks_for(request.num_tokens_to_compute) - len(held.blocks))
        self._promised += promised - held.promised
        held.promised = promised

    def commit(self, request: Request) -> None:
        """Makes the blocks findable that are full, computed and known."""
        held = self._held[request.request_id]
        if not self.enable_prefix_caching or held.serial is None:
            return
        num_full = min(request.num_computed_tokens, len(request.token_ids)) // self.block_size
        while held.num_hashed < num_full and held.serial is not None:
            index = held.num_hashed
            stale = self._cache.unreachable(request, index)
            if stale is not None:
                self._forget(stale)
            held.serial = self._cache.register(request, index, held.blocks[index], held.serial)
            held.num_hashed += 1

    def table(self, request: Request) -> tuple[int, ...]:
        return self._held[request.request_id].table

    # ------------------------------------------------------------------ release

    def release(self, request: Request, *, num_valid_tokens: int | None = None) -> None:
        """Takes all blocks back; hashed ones stay findable, the last to be evicted first (K4).

        `num_valid_tokens`: the KV of later tokens will never be computed, so what was
        hashed of it is forgotten (rule S6).
        """
        held = self._held.pop(request.request_id)
        self._promised -= held.promised
        if num_valid_tokens is not None:
            for block in held.blocks[num_valid_tokens // self.block_size :]:
                self._forget(block)
        for block in reversed(held.blocks):
            self._release(block)

    def forget_written(self, table: tuple[int, ...], start: int, end: int) -> None:
        """A chunk of positions start … end − 1 was dropped: what it wrote is not to be found."""
        for block in table[start // self.block_size : self._blocks_for(end)]:
            self._forget(block)

    def poison(self, blocks: Iterable[int]) -> None:
        """The blocks hold NaN: not to be found, and zeroed before anyone reuses them."""
        for block in blocks:
            self._forget(block)
            self._dirty.add(block)

    def take_blocks_to_zero(self) -> tuple[int, ...]:
        """Poisoned blocks handed out since the last call; the plan being made zeroes them."""
        blocks, self._to_zero = tuple(self._to_zero), []
        return blocks

    # ------------------------------------------------------------------- inside

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_revived(self, hit: Hit) -> int:
        """Hits that lie in the free queue: they cost a block like a new one (rule K8)."""
        return sum(self._pool.is_free(block) for block in hit.blocks)

    def _grow(self, held: _Held, num_new: int) -> None:
        for _ in range(num_new):
            block = self._pool.take()
            if self._cache.forget(block):
                self._num_cached -= 1
                self.num_evictions += 1
            if block in self._dirty:
                self._dirty.remove(block)
                self._to_zero.append(block)
            held.blocks.append(block)
        held.table = tuple(held.blocks)

    def _share(self, block: int) -> None:
        self._num_cached -= self._pool.is_free(block)
        self._pool.share(block)

    def _release(self, block: int) -> None:
        keep = self._cache.holds(block)
        self._pool.release(block, keep=keep)
        self._num_cached += keep and self._pool.is_free(block)

    def _forget(self, block: int) -> None:
        if self._cache.forget(block) and self._pool.is_free(block):
            self._num_cached -= 1
            self._pool.reuse_first(block)

    def check(self, holders: Iterable[Request]) -> None:
        """Rule K9; `holders` are the admitted requests. Costs O(blocks)."""
        self._pool.check()
        self._cache.check()
        requests = {request.request_id: request for request in holders}
        assert requests.keys() == self._held.keys(), "blocks are held by admitted requests alone"
        refs = [0] * self.num_blocks
        for request_id, held in self._held.items():
            assert held.table == tuple(held.blocks)
            assert len(set(held.blocks)) == len(held.blocks), f"{request_id} holds a block twice"
            num_full = requests[request_id].num_computed_tokens // self.block_size
            for index, block in enumerate(held.blocks):
                refs[block] += 1
                if index >= num_full:
                    assert self._pool.refs(block) == 1, f"block {block} is not full and is shared"
        for block, count in enumerate(refs):
            assert self._pool.refs(block) == count, f"block {block}: {count} tables hold it"
        assert self._promised == sum(held.promised for held in self._held.values())
        cached_free = sum(
            self._pool.is_free(block) and self._cache.holds(block)
            for block in range(self.num_blocks)
        )
        assert self._num_cached == cached_free
        assert not self._to_zero, "a plan was closed without zeroing poisoned blocks"
