"""Full blocks by what they hold: a verified, salted hash chain (rules K2, K3).

A block's key is a hash over the parent's key, its tokens and its extra keys, mixed with a
secret of the process. 64 bits are enough because a hit is never taken on the key's word:
tokens, extra keys and the serial number of the parent's entry are compared.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.core.request import Request

__all__ = ["NO_HIT", "ExtraKeys", "Hit", "PrefixCache"]

ROOT_SERIAL = 0


class ExtraKeys(NamedTuple):
    """What changes a block's KV, or who may read it, beside its tokens; a field per kind."""

    cache_salt: str | None = None


_NO_EXTRA = ExtraKeys()


class Hit(NamedTuple):
    """The longest cached prefix of a request."""

    blocks: tuple[int, ...]
    serial: int
    """Serial of the last block's entry: the parent of the block that comes next."""


NO_HIT = Hit((), ROOT_SERIAL)


class _Entry(NamedTuple):
    key: int
    block: int
    serial: int
    """New each time a key is registered, so that a child cannot outlive its parent's entry."""
    parent_serial: int
    tokens: tuple[int, ...]
    extra: ExtraKeys


class PrefixCache:
    """Key → block → key. Knows nothing of who holds a block."""

    def __init__(self, block_size: int, secret: int) -> None:
        self._block_size = block_size
        self._secret = secret
        self._by_key: dict[int, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}
        self._last_serial = ROOT_SERIAL

    def __len__(self) -> int:
        return len(self._by_block)

    def holds(self, block: int) -> bool:
        return block in self._by_block

    def lookup(self, request: Request, max_blocks: int) -> Hit:
        """The request's first blocks that are cached, at most `max_blocks`."""
        blocks: list[int] = []
        serial = ROOT_SERIAL
        for index in range(max_blocks):
            entry = self._by_key.get(self._key(request, index))
            if entry is None or not self._same(entry, request, index, serial):
                break
            blocks.append(entry.block)
            serial = entry.serial
        return Hit(tuple(blocks), serial)

    def register(self, request: Request, index: int, block: int, parent: int) -> int | None:
        """Makes the request's full block `index` findable; `parent` is the serial before it.

        Returns the serial of the entry that stands for these tokens: the block's own, or that of
        an equal block registered before (then this one stays without a key). None: another
        chain's block has the key, so this request's chain cannot be continued.
        """
        key = self._key(request, index)
        entry = self._by_key.get(key)
        if entry is not None:
            return entry.serial if self._same(entry, request, index, parent) else None
        self._last_serial += 1
        entry = _Entry(
            key,
            block,
            self._last_serial,
            parent,
            self._tokens(request, index),
            _extra(request, index),
        )
        self._by_key[key] = self._by_block[block] = entry
        return entry.serial

    def unreachable(self, request: Request, index: int) -> int | None:
        """The block that has this key below a parent whose entry is gone, if there is one.

        No lookup reaches it any more, and while it keeps the key no other block can have it.
        """
        entry = self._by_key.get(self._key(request, index))
        if entry is None or index == 0:
            return None
        parent = self._by_key.get(self._key(request, index - 1))
        reachable = parent is not None and parent.serial == entry.parent_serial
        return None if reachable else entry.block

    def forget(self, block: int) -> bool:
        """Takes the block's key away; False where it had none."""
        entry = self._by_block.pop(block, None)
        if entry is None:
            return False
        del self._by_key[entry.key]
        return True

    def check(self) -> None:
        """Rule K9: key → block → key is consistent."""
        assert len(self._by_key) == len(self._by_block)
        for key, entry in self._by_key.items():
            assert entry.key == key
            assert self._by_block.get(entry.block) is entry
            assert len(entry.tokens) == self._block_size

    def _same(self, entry: _Entry, request: Request, index: int, parent: int) -> bool:
        return (
            entry.parent_serial == parent
            and entry.tokens == self._tokens(request, index)
            and entry.extra == _extra(request, index)
        )

    def _tokens(self, request: Request, index: int) -> tuple[int, ...]:
        start = index * self._block_size
        tokens = tuple(request.token_ids[start : start + self._block_size])
        assert len(tokens) == self._block_size, "only full blocks of known tokens have keys"
        return tokens

    def _key(self, request: Request, index: int) -> int:
        keys = request.block_keys
        while len(keys) <= index:
            i = len(keys)
            parent = keys[-1] if keys else self._secret
            keys.append(hash((self._secret, parent, self._tokens(request, i), _extra(request, i))))
        return keys[index]


def _extra(request: Request, index: int) -> ExtraKeys:
    """The salt is in the first block only: every later key follows from it."""
    return ExtraKeys(cache_salt=request.cache_salt) if index == 0 else _NO_EXTRA
