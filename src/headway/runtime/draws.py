"""What every sampler shares: the random number of a draw, and why a row may have no token.

The generator is Philox-4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2,
3", SC'11): a pure function of a key and a counter. There is no state to share, so a draw
does not depend on any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headway.core.plan import ChunkError
from headway.runtime.inputs import SampleRow

__all__ = ["philox_4x32", "uniforms", "why_no_token"]

Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox_4x32(counter: Words, key: Words) -> Words:
    """Ten rounds over 32-bit words held in uint64: counter [4, n], key [2, n] -> [4, n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        even, odd = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (odd >> _HALF) ^ c1 ^ k0,
            odd & _LOW,
            (even >> _HALF) ^ c3 ^ k1,
            even & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3))


def uniforms(rows: Sequence[SampleRow]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per row, of 53 bits: key = seed, counter = (index, position)."""
    seeds = _words([row.sample.seed for row in rows])
    indices = _words([row.sample.index for row in rows])
    positions = _words([row.position for row in rows])
    high, low, _, _ = philox_4x32(np.concatenate((indices, positions)), seeds)
    bits = ((high >> np.uint64(5)) << np.uint64(26)) | (low >> np.uint64(6))
    numbers: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers


def why_no_token(largest_logit: float, row: SampleRow) -> ChunkError | None:
    """Why a row with this largest logit (NaN where it holds any) cannot be sampled; else None.

    The largest is that after bans, biases and penalties.
    """
    if math.isfinite(largest_logit):
        return None
    if row.failure:
        return ChunkError(row.failure, (_structure(row),))
    if largest_logit == -math.inf:
        if not (fields := tuple(_bans(row))):
            return ChunkError("no token can be sampled: every logit is -inf")
        leave = "leaves" if len(fields) == 1 else "together leave"
        return ChunkError(f"{leave} no token that can be sampled", fields)
    # No fault of the request's, whose biases and penalties are bounded.
    penalty = row.sample.params.repetition_penalty
    after = "" if penalty == 1.0 else f" (with repetition_penalty {penalty:g})"
    return ChunkError(f"no token can be sampled: the logits{after} hold NaN or infinity")


def _bans(row: SampleRow) -> Iterator[str]:
    """What the request asks for that may have banned a token here."""
    sample, params = row.sample, row.sample.params
    if sample.constraint is not None:
        yield _structure(row)
    if params.allowed_token_ids is not None:
        yield "allowed_token_ids"
    if sample.bad_words:
        yield "bad_words"
    if sample.suppressed:  # the stop tokens
        yield "min_tokens" if params.min_tokens else "ignore_eos"


def _structure(row: SampleRow) -> str:
    structure = row.sample.params.structured_outputs
    return "structured_outputs" if structure is None else structure.path or "structured_outputs"


def _words(values: Sequence[int]) -> Words:
    """Integers, modulo 2^64, as their low and high 32 bits: [2, n]."""
    whole = np.array([value & 0xFFFFFFFFFFFFFFFF for value in values], dtype=np.uint64)
    return np.stack((whole & _LOW, whole >> _HALF))
