"""Sampling of a mixed batch in PyTorch; `reference.sample_row` is its plain definition.

A row's token depends on its logits and its `Sample` alone: all that runs over several rows
at once is elementwise, or a scan or a search along the row, and sums are cumulative ones,
whose order does not change with the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.core.plan import Sample
from headway.runtime.draws import uniforms, why_no_token

__all__ = ["sample"]

_SLICE_BYTES = 8 << 20
"""Float64 probabilities held at a time; more would fall out of the CPU's caches."""


def sample(logits: Tensor, samples: Sequence[Sample]) -> tuple[list[int | None], dict[int, str]]:
    """A token per row, or None and an error by row.

    `logits` [rows, vocab] float32 are overwritten where tokens are suppressed. Where every
    row is greedy, nothing but the argmax (the lowest token on ties) runs.
    """
    _suppress(logits, samples)
    largest, best = logits.max(dim=-1)
    tokens: list[int | None] = best.tolist()
    errors: dict[int, str] = {}
    for row, value in enumerate(largest.tolist()):
        if (reason := why_no_token(value)) is not None:
            errors[row] = reason
            tokens[row] = None
    drawn = [i for i, s in enumerate(samples) if not s.params.greedy and i not in errors]
    rows_at_once = max(1, _SLICE_BYTES // (8 * logits.shape[1]))
    for begin in range(0, len(drawn), rows_at_once):
        rows = drawn[begin : begin + rows_at_once]
        for row, token in zip(rows, _draw(logits[rows], [samples[i] for i in rows]), strict=True):
            tokens[row] = token
    return tokens, errors


def _suppress(logits: Tensor, samples: Sequence[Sample]) -> None:
    pairs = [(row, token) for row, s in enumerate(samples) for token in s.suppressed]
    if pairs:
        rows, tokens = torch.tensor(pairs, device=logits.device).T
        logits[rows, tokens] = -torch.inf


def _draw(logits: Tensor, samples: Sequence[Sample]) -> list[int]:
    """Inverse of the cumulative distribution, in the order of the vocabulary."""
    scores = logits.double()
    scores -= scores.amax(dim=-1, keepdim=True)  # before a tiny temperature could overflow
    scores /= _column([s.params.temperature for s in samples], logits)
    probabilities = scores.softmax(dim=-1)
    _truncate(probabilities, samples)
    cumulative = probabilities.cumsum(dim=-1)
    drawn = torch.from_numpy(uniforms(samples)).to(logits.device)[:, None] * cumulative[:, -1:]
    tokens: list[int] = torch.searchsorted(cumulative, drawn, right=True)[:, 0].tolist()
    return tokens


def _truncate(probabilities: Tensor, samples: Sequence[Sample]) -> None:
    """Sets to zero what min_p, then top_k, then top_p leave out, as vLLM orders them."""
    vocab = probabilities.shape[1]
    if any(s.params.min_p for s in samples):
        floor = _column([s.params.min_p for s in samples], probabilities)
        floor = floor * probabilities.amax(dim=-1, keepdim=True)
        probabilities.masked_fill_(probabilities < floor, 0.0)
    ranked = [
        i for i, s in enumerate(samples) if s.params.top_p < 1.0 or 0 < s.params.top_k < vocab
    ]
    if ranked:
        rows = probabilities[ranked]
        kept = _likeliest(rows, [samples[i] for i in ranked])
        probabilities[ranked] = rows.masked_fill_(~kept, 0.0)


def _likeliest(probabilities: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Which tokens top_k and top_p keep: bool, of the shape of `probabilities`.

    Ranks only as many tokens as may be kept: with top_p alone, those below (1 - top_p) /
    vocab weigh less than 1 - top_p together. On ties the lower token is kept.
    """
    vocab = probabilities.shape[1]
    params = [s.params for s in samples]
    top_k = torch.tensor(
        [p.top_k if 0 < p.top_k < vocab else vocab for p in params], device=probabilities.device
    )[:, None]
    top_p = _column([p.top_p for p in params], probabilities)
    whole = (top_k == vocab) & (_column([p.min_p for p in params], probabilities) == 0.0)
    negligible = torch.where(whole, (1.0 - top_p) / vocab, 0.0)
    candidates = (probabilities > negligible).sum(dim=-1, keepdim=True).clamp_(min=1)
    candidates = torch.minimum(candidates, top_k)
    ranked = probabilities.topk(int(candidates.max())).values
    rank = torch.arange(ranked.shape[1], device=ranked.device)
    ranked.masked_fill_(rank >= top_k, 0.0)
    reached = ranked.cumsum(dim=-1)
    total = torch.where(whole, 1.0, reached[:, -1:])
    limit = torch.where(top_p < 1.0, top_p * total, torch.inf)
    more = (reached < limit) & (rank + 1 < candidates)
    last = more.sum(dim=-1, keepdim=True)  # rank of the last token kept
    cutoff = ranked.gather(1, last)
    kept, tied = probabilities > cutoff, probabilities == cutoff
    room = last + 1 - kept.sum(dim=-1, keepdim=True)
    if bool((tied.sum(dim=-1, keepdim=True) > room).any()):
        tied &= tied.cumsum(dim=-1) <= room
    return kept | tied


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
