"""How one token is sampled, in NumPy: the definition that `sampler` is tested against.

The order is vLLM's: bans (what a constraint allows, `allowed_token_ids`, `bad_words`,
`Sample.suppressed`), `logit_bias`, repetition, frequency and presence penalty, temperature, min_p,
top_k, top_p. The logits are float32 and stay so up to the penalties, each of which rounds once;
probabilities are float64.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from headway.core.plan import ChunkError, TokenLogprobs
from headway.runtime.draws import uniforms, why_no_token
from headway.runtime.inputs import SampleRow

__all__ = ["adjusted", "sample_row", "token_logprobs"]

Array = npt.NDArray[np.float32]


def adjusted(logits: Array, row: SampleRow) -> Array:
    """A copy of raw logits [vocab] after bans, biases and penalties.

    A ban adds -inf rather than writing it: NaN stays to be seen, for its row is broken.
    """
    sample, params = row.sample, row.sample.params
    scores = logits.astype(np.float32)
    repetition = np.float32(params.repetition_penalty)
    with np.errstate(all="ignore"):  # what overflows is reported as the row's error
        for token in _banned(row, len(logits)):
            scores[token] += -np.inf
        for token, bias in (params.logit_bias or {}).items():
            scores[token] += np.float32(bias)
        if params.repetition_penalty != 1.0:
            for token in {*sample.prompt_ids, *row.output_ids}:
                logit = scores[token]
                scores[token] = logit / repetition if logit > 0.0 else logit * repetition
        for token, count in Counter(row.output_ids).items():
            penalty = params.frequency_penalty * count + params.presence_penalty
            scores[token] -= np.float32(penalty)
    return scores


def sample_row(logits: Array, row: SampleRow) -> int | ChunkError:
    """One token from raw logits [vocab], or why none can be sampled.

    Each filter works on what the one before left; then the inverse of the cumulative
    distribution in the order of the vocabulary.
    """
    params = row.sample.params
    scores = adjusted(logits, row).astype(np.float64)
    best = int(np.argmax(scores))  # the lowest on ties; NaN wins
    if (reason := why_no_token(float(scores[best]), row)) is not None:
        return reason
    if params.greedy:
        return best
    with np.errstate(over="ignore"):  # a tiny temperature leaves only the best
        probabilities = np.exp((scores - scores[best]) / params.temperature)
    probabilities /= probabilities.sum()
    probabilities[probabilities < params.min_p * probabilities.max()] = 0.0
    kept = np.argsort(-probabilities, kind="stable")  # lower ids first on ties
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        reached = probabilities[kept].cumsum()
        kept = kept[: np.searchsorted(reached, params.top_p * reached[-1]) + 1]
    cumulative = np.zeros_like(probabilities)
    cumulative[kept] = probabilities[kept]
    cumulative = cumulative.cumsum()
    drawn = uniforms([row])[0] * cumulative[-1]
    return int(np.searchsorted(cumulative, drawn, side="right"))


def token_logprobs(logits: Array, token_id: int, num_top: int) -> TokenLogprobs:
    """Of a token and the `num_top` likeliest, under the softmax of raw logits [vocab].

    Where the logits hold NaN or inf, so do the log-probabilities.
    """
    scores = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = scores - scores.max()
        logprobs = shifted - np.log(np.exp(shifted).sum())
    likeliest = np.argsort(-scores, kind="stable")[:num_top]  # lower ids first on ties
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(logprobs[token_id]),
        rank=1 + int((scores > scores[token_id]).sum()),
        top=tuple((int(token), float(logprobs[token])) for token in likeliest),
    )


def _banned(row: SampleRow, vocab: int) -> set[int]:
    banned = set(row.suppressed)
    if row.mask is not None:
        banned |= set(np.flatnonzero(row.mask).tolist())
    if row.sample.params.allowed_token_ids is not None:
        banned |= set(range(vocab)) - set(row.sample.params.allowed_token_ids)
    for *before, last in row.sample.bad_words:
        if not before or row.output_ids[-len(before) :] == tuple(before):
            banned.add(last)
    return banned
