"""min_p, top_k and top_p over a mixed batch of probabilities, in PyTorch.

Each works on what the one before left, in vLLM's order; on ties the lower token is kept.
`sample_reference` is the plain definition. A row comes out the same in any batch: what runs over
several rows is elementwise, a scan along the row, or a ranking of its values, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.core.params import SamplingParams

__all__ = ["ranks_tokens", "truncate"]

_FEW = 256
"""Tokens of a row that are ranked at first; where those are too few, all that may count."""


def ranks_tokens(params: SamplingParams, vocab: int) -> bool:
    """Whether top_k or top_p leaves tokens out."""
    return params.top_p < 1.0 or 0 < params.top_k < vocab


def truncate(probabilities: Tensor, params: Sequence[SamplingParams]) -> None:
    """Sets to zero what is left out of `probabilities` [rows, vocab] float64, in place."""
    vocab = probabilities.shape[1]
    if any(p.min_p for p in params):
        floor = torch.tensor([[p.min_p] for p in params], dtype=torch.float64)
        floor = floor.to(probabilities.device) * probabilities.amax(dim=-1, keepdim=True)
        probabilities.masked_fill_(probabilities < floor, 0.0)
    ranked = [i for i, p in enumerate(params) if ranks_tokens(p, vocab)]
    if ranked:
        _truncate_by_rank(probabilities, ranked, [params[i] for i in ranked])


def _truncate_by_rank(
    probabilities: Tensor, places: list[int], params: Sequence[SamplingParams]
) -> None:
    """Applies top_k and top_p to the rows at `places`, whose params these are."""
    vocab = probabilities.shape[1]
    rows = probabilities if len(places) == len(probabilities) else probabilities[places]
    top_k = torch.tensor([[p.top_k if 0 < p.top_k < vocab else vocab] for p in params])
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64)
    top_k, top_p = top_k.to(rows.device), top_p.to(rows.device)
    whole = top_k == vocab
    total = rows.cumsum(dim=-1)[:, -1:]
    ranked = rows.topk(min(_FEW + 1, vocab)).values
    num_kept, cutoff, tied = _cut(ranked, top_k, top_p, whole, total)
    too_few = (num_kept > _FEW) | (~whole & (top_k > _FEW))
    for i in too_few[:, 0].nonzero()[:, 0].tolist():
        # less likely ones weigh less than 1 - top_p together, so that top_p is reached without
        negligible = whole[i] * (1.0 - top_p[i]) * total[i] / vocab
        ranked = rows[i][rows[i] > negligible].sort(descending=True).values[None]
        one = slice(i, i + 1)
        num_kept[one], cutoff[one], tied[one] = _cut(
            ranked, top_k[one], top_p[one], whole[one], total[one]
        )
    cutoffs = probabilities.new_zeros(len(probabilities), 1)
    cutoffs[places] = cutoff
    probabilities.masked_fill_(probabilities < cutoffs, 0.0)
    for i in tied[:, 0].nonzero()[:, 0].tolist():
        row = probabilities[places[i]]
        equals = (row == cutoff[i]).nonzero()[:, 0]
        num_left_out = int(row.count_nonzero()) - int(num_kept[i])
        row[equals[len(equals) - num_left_out :]] = 0.0


def _cut(
    ranked: Tensor, top_k: Tensor, top_p: Tensor, whole: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """How many tokens of each row are kept, the least probability of those, and whether the
    next, left out, is as likely. Of the likeliest ones in order; all are [rows, 1]."""
    rank = torch.arange(ranked.shape[1], device=ranked.device)
    reached = ranked.masked_fill(rank >= top_k, 0.0).cumsum(dim=-1)
    limit = torch.where(top_p < 1.0, top_p * torch.where(whole, total, reached[:, -1:]), torch.inf)
    num_kept = 1 + ((reached < limit) & (rank + 1 < top_k)).sum(dim=-1, keepdim=True)
    last = ranked.shape[1] - 1
    cutoff = ranked.gather(1, (num_kept - 1).clamp(max=last))
    following = ranked.gather(1, num_kept.clamp(max=last))
    tied = (following == cutoff) & (num_kept <= last) & (cutoff > 0.0)
    return num_kept, cutoff, tied
