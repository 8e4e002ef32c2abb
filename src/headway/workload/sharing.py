"""What prompts have in common: prefixes, and documents out of a pool."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import msgspec

from headway.errors import InvalidConfig
from headway.workload.lengths import Length, check_length, longest

__all__ = [
    "Documents",
    "SharedPrefix",
    "check_documents",
    "check_prefix",
    "draw_documents",
    "draw_prefix",
]


class SharedPrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What some prompts of a class begin with."""

    len: int
    """Tokens; part of the prompt's length."""
    share: float = 1.0
    """Of the prompts, in (0, 1]; which ones is drawn."""
    count: int = 1
    """Different prefixes."""
    zipf: float = 0.0
    """How unequally popular they are: the k-th is drawn with a weight of k^-zipf; 0: evenly."""


class Documents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts out of a pool, which come before a question (retrieval-augmented generation)."""

    len: Length
    """Tokens of a document, drawn once for each; they come on top of `input_len`."""
    count: int
    """Documents in the pool."""
    per_prompt: Length = 1
    """Different ones in a prompt, in the order in which they are drawn."""
    zipf: float = 1.0
    """Popularity, as that of prefixes."""


def draw_prefix(shared: SharedPrefix, random: Random) -> int | None:
    """The prefix of one prompt, by its number from 0; None: it has none."""
    if random.random() >= shared.share:
        return None
    weights = accumulate(_weights(shared.count, shared.zipf))
    return random.choices(range(shared.count), cum_weights=list(weights))[0]


def draw_documents(documents: Documents, how_many: int, random: Random) -> list[int]:
    """Those of one prompt, by their numbers from 0, one after the other out of those left.

    Each gets an exponential waiting time of its weight's rate; the first `how_many` that come
    are such a draw (Efraimidis and Spirakis, 2006).
    """
    weights = _weights(documents.count, documents.zipf)
    comes = [random.expovariate(weight) for weight in weights]
    return sorted(range(documents.count), key=comes.__getitem__)[:how_many]


def _weights(count: int, zipf: float) -> list[float]:
    return [(1 + index) ** -zipf for index in range(count)]


def check_prefix(field: str, shared: SharedPrefix, shortest_prompt: int) -> None:
    """Raises InvalidConfig, naming `field` and what is wrong in it."""
    if not 1 <= shared.len < shortest_prompt:
        raise InvalidConfig(
            f"{field}.len",
            f"must be from 1 to below the shortest prompt ({shortest_prompt}), not {shared.len}",
        )
    if not 0 < shared.share <= 1:
        raise InvalidConfig(f"{field}.share", f"must be in (0, 1], not {shared.share}")
    _check_pool(field, shared.count, shared.zipf)


def check_documents(field: str, documents: Documents) -> None:
    """Raises InvalidConfig, naming `field` and what is wrong in it."""
    check_length(f"{field}.len", documents.len)
    check_length(f"{field}.per_prompt", documents.per_prompt)
    _check_pool(field, documents.count, documents.zipf)
    most = longest(documents.per_prompt)
    if most > documents.count:
        raise InvalidConfig(
            f"{field}.per_prompt", f"must be at most the pool's {documents.count}, not {most}"
        )


_MOST_IN_A_POOL = 100_000
_STEEPEST = 10.0


def _check_pool(field: str, count: int, zipf: float) -> None:
    if not 1 <= count <= _MOST_IN_A_POOL:
        raise InvalidConfig(f"{field}.count", f"must be at least 1, at most 100,000, not {count}")
    if not 0 <= zipf <= _STEEPEST:
        raise InvalidConfig(f"{field}.zipf", f"must be from 0 to 10, not {zipf}")
