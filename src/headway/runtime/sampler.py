"""Sampling of a mixed batch in PyTorch; `sample_reference` is its plain definition.

A row's token depends on its logits and its `SampleRow` alone: all that runs over several rows
at once is elementwise, or a scan or a search along the row, and sums are cumulative ones,
whose order does not change with the number of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from headway.core.plan import ChunkError, TokenLogprobs
from headway.runtime.adjustments import adjust
from headway.runtime.draws import uniforms, why_no_token
from headway.runtime.filters import ranks_tokens, truncate
from headway.runtime.inputs import SampleRow
from headway.runtime.results import SampledRows

__all__ = ["largest", "likeliest", "prompt_logprobs", "sample"]

_SLICE_BYTES = 8 << 20
"""Float64 probabilities held at a time; more would fall out of the CPU's caches."""


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> SampledRows:
    """A token per row of raw logits [rows, vocab] float32, which may be overwritten.

    Raises ValueError for a token outside of the vocabulary in a row's `SampleRow`. Where every
    row is greedy and plain, nothing but the argmax (the lowest token on ties) runs.
    """
    asking: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        if row.sample.params.logprobs is not None:
            asking[row.sample.params.logprobs].append(i)
    raw = {num_top: logits[some] for num_top, some in asking.items()}  # copies, before a change
    adjust(logits, rows)
    tokens, errors = _choose(logits, rows)
    logprobs: dict[int, TokenLogprobs] = {}
    for num_top, some in asking.items():
        records = prompt_logprobs(raw[num_top], [tokens[i] or 0 for i in some], num_top)
        logprobs |= {i: of for i, of in zip(some, records, strict=True) if i not in errors}
    return SampledRows(tokens, errors, logprobs)


def largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The first token of the largest logit of each row, or of the NaNs, and that logit."""
    if logits.device.type == "cpu":  # NumPy's search is the faster
        tokens = torch.from_numpy(logits.numpy().argmax(axis=-1))
    else:
        tokens = logits.argmax(dim=-1)
    return tokens, logits.gather(1, tokens[:, None])[:, 0]


def likeliest(tokens: Tensor, values: Tensor, rows: Sequence[SampleRow]) -> SampledRows:
    """Of rows that take their likeliest token, given with its raw logit (`Backend.likeliest`)."""
    errors: dict[int, ChunkError] = {}
    for i, value in enumerate(values.tolist()):
        if (reason := why_no_token(value, rows[i])) is not None:
            errors[i] = reason
    found = [None if i in errors else token for i, token in enumerate(tokens.tolist())]
    return SampledRows(found, errors)


def prompt_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Of a token per row and the row's `num_top` likeliest, under the softmax of raw logits.

    `logits` are [rows, vocab] float32. Where a row holds NaN or inf, so does its record.
    """
    records: list[TokenLogprobs] = []
    rows_at_once = _rows_at_once(logits)
    for begin in range(0, len(logits), rows_at_once):
        rows = slice(begin, begin + rows_at_once)
        records += _logprobs(logits[rows], token_ids[rows], num_top)
    return records


def _logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    likelier = torch.gt(logits, logits.gather(1, chosen), out=torch.empty_like(logits))
    ranks = 1 + likelier.sum(dim=-1).long()  # ones: their sum is exact in any order
    wanted = torch.cat((chosen, _likeliest(logits, num_top)), dim=1)
    values = logits.double().log_softmax(dim=-1).gather(1, wanted)
    return [
        TokenLogprobs(token, first, rank, tuple(zip(top, others, strict=True)))
        for (token, *top), (first, *others), rank in zip(
            wanted.tolist(), values.tolist(), ranks.tolist(), strict=True
        )
    ]


def _likeliest(logits: Tensor, count: int) -> Tensor:
    """The `count` likeliest tokens of each row, in order, lower ones first on ties."""
    values, tokens = logits.topk(min(count + 1, logits.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(dim=-1)
    for row in tied.nonzero()[:, 0].tolist():  # topk leaves the order of equals open
        candidates = (~(logits[row] < values[row, -1])).nonzero()[:, 0]  # NaN too
        order = logits[row, candidates].sort(descending=True, stable=True).indices
        tokens[row] = candidates[order[: tokens.shape[1]]]
    return tokens[:, :count]


def _choose(
    logits: Tensor, rows: Sequence[SampleRow]
) -> tuple[list[int | None], dict[int, ChunkError]]:
    best = likeliest(*largest(logits), rows)
    tokens, errors = best.token_ids, best.errors
    drawn = [i for i, r in enumerate(rows) if not r.sample.params.greedy and i not in errors]
    drawn.sort(key=lambda i: ranks_tokens(rows[i].sample.params, logits.shape[1]))  # fewer copies
    rows_at_once = _rows_at_once(logits)
    for begin in range(0, len(drawn), rows_at_once):
        some = drawn[begin : begin + rows_at_once]
        for i, token in zip(some, _draw(logits[some], [rows[i] for i in some]), strict=True):
            tokens[i] = token
    return tokens, errors


def _draw(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """Inverse of the cumulative distribution, in the order of the vocabulary."""
    params = [row.sample.params for row in rows]
    scores = logits.double()
    scores -= scores.amax(dim=-1, keepdim=True)  # before a tiny temperature could overflow
    temperatures = torch.tensor([[p.temperature] for p in params], dtype=torch.float64)
    scores /= temperatures.to(scores.device)
    probabilities = scores.softmax(dim=-1)
    truncate(probabilities, params)
    cumulative = probabilities.cumsum(dim=-1)
    drawn = torch.from_numpy(uniforms(rows)).to(logits.device)[:, None] * cumulative[:, -1:]
    tokens: list[int] = torch.searchsorted(cumulative, drawn, right=True)[:, 0].tolist()
    return tokens


def _rows_at_once(logits: Tensor) -> int:
    return max(1, _SLICE_BYTES // (8 * logits.shape[1]))
