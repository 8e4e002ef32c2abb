"""Full blocks by what they hold: a verified, salted hash chain (rules K2, K3).

A block's key is a hash over the parent's key and its tokens; the extra keys and a secret of the
process are in the root. 64 bits are enough because a hit is never taken on the key's word:
tokens, extra keys and the serial number of the parent's entry are compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from typing import NamedTuple

from headway.core.request import Request

__all__ = ["NO_HIT", "ExtraKeys", "Hit", "PrefixCache"]

ROOT_SERIAL = 0

_TOKEN_TYPE = "I"
_TOKEN_BYTES = array(_TOKEN_TYPE).itemsize


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


class PrefixCache:
    """Key → block → key. Knows nothing of who holds a block."""

    def __init__(self, num_blocks: int, block_size: int, secret: int) -> None:
        self._block_size = block_size
        self._secret = secret
        self._block_of: dict[int, int] = {}
        self._key_of: dict[int, int] = {}
        self._last_serial = ROOT_SERIAL
        # What a key stands for, by the block that has it. Lists, and not an object for each: a
        # cache of many blocks is then nothing to the garbage collector.
        self._serials = [ROOT_SERIAL] * num_blocks
        """New each time a key is registered, so that a child cannot outlive its parent's entry."""
        self._parents = [ROOT_SERIAL] * num_blocks
        """Serials of the blocks before."""
        self._tokens = [b""] * num_blocks
        self._extras = [_NO_EXTRA] * num_blocks
        self.num_forgotten = 0
        """Keys taken away, ever: while it stands still a hit can only grow."""

    def __len__(self) -> int:
        return len(self._key_of)

    @property
    def blocks(self) -> Container[int]:
        """Those that have a key."""
        return self._key_of

    def keys(self, request: Request, count: int) -> list[int]:
        """The keys of the request's first `count` full blocks, and perhaps more.

        Kept with the request: they depend on its tokens alone, so each is made once.
        """
        keys, blocks = request.block_keys, request.block_tokens
        if len(keys) < count:
            start, size = len(keys), self._block_size
            tokens = request.token_ids[start * size : count * size]
            assert len(tokens) == (count - start) * size, "only full blocks have keys"
            data = array(_TOKEN_TYPE, tokens).tobytes()
            width = size * _TOKEN_BYTES
            key = keys[-1] if keys else hash((self._secret, _extra(request)))
            for offset in range(0, len(data), width):
                piece = data[offset : offset + width]
                key = hash((key, piece))
                keys.append(key)
                blocks.append(piece)
        return keys

    def lookup(self, request: Request, max_blocks: int, known: Hit = NO_HIT) -> Hit:
        """The request's first blocks that are cached, at most `max_blocks`.

        `known`: a shorter hit that still stands, to go on from.
        """
        keys, block_of = self.keys(request, max_blocks), self._block_of
        parents, tokens = self._parents, self._tokens
        first, serial = len(known.blocks), known.serial
        found: list[int] = []
        for key, piece in zip(keys[first:max_blocks], request.block_tokens[first:], strict=False):
            block = block_of.get(key)
            if block is None or parents[block] != serial or tokens[block] != piece:
                break
            if serial == ROOT_SERIAL and self._extras[block] != _extra(request):
                break
            found.append(block)
            serial = self._serials[block]
        return Hit((*known.blocks, *found), serial) if found else known

    def register(
        self, request: Request, first: int, blocks: Sequence[int], parent: int
    ) -> tuple[int | None, list[int]]:
        """Makes the request's full blocks from `first` on findable; `parent` is the serial
        before them.

        Returns the serial that stands for the tokens up to the last one: that of the block, or
        of an equal block registered before (then this one stays without a key). None: another
        chain's block has a key, so this request's chain cannot be continued. And the blocks that
        lost their keys, as no lookup reached them any more.
        """
        keys, pieces = self.keys(request, first + len(blocks)), request.block_tokens
        extra, dropped = _extra(request), list[int]()
        for index, block in enumerate(blocks, first):
            key, piece = keys[index], pieces[index]
            other = self._block_of.get(key)
            if other is not None and index > 0 and not self._reachable(other, keys[index - 1]):
                self.forget(other)
                dropped.append(other)
                other = None
            if other is None:
                self._block_of[key] = block
                self._key_of[block] = key
                self._last_serial += 1
                self._serials[block] = self._last_serial
                self._parents[block] = parent
                self._tokens[block] = piece
                self._extras[block] = extra
                parent = self._last_serial
            elif (self._parents[other], self._tokens[other], self._extras[other]) == (
                parent,
                piece,
                extra,
            ):
                parent = self._serials[other]
            else:
                return None, dropped
        return parent, dropped

    def _reachable(self, block: int, parent_key: int) -> bool:
        """What it was registered below still has its key: else no lookup gets to it, and while it
        keeps its own no other block can have that."""
        parent = self._block_of.get(parent_key)
        return parent is not None and self._serials[parent] == self._parents[block]

    def forget(self, block: int) -> bool:
        """Takes the block's key away; False where it had none."""
        key = self._key_of.pop(block, None)
        if key is None:
            return False
        del self._block_of[key]
        self.num_forgotten += 1
        return True

    def check(self) -> None:
        """Rule K9: key → block → key is consistent."""
        assert len(self._block_of) == len(self._key_of)
        for key, block in self._block_of.items():
            assert self._key_of.get(block) == key
            assert len(self._tokens[block]) == self._block_size * _TOKEN_BYTES


def _extra(request: Request) -> ExtraKeys:
    """In the root: every key of the chain follows from it."""
    salt = request.cache_salt
    return _NO_EXTRA if salt is None else ExtraKeys(cache_salt=salt)
