"""What bans, biases and penalties make of a batch of raw logits, in PyTorch.

In vLLM's order: what a constraint allows, `allowed_token_ids`, `bad_words` and
`Sample.suppressed`, `logit_bias`, repetition penalty, frequency and presence penalty. But for what
constraints and `allowed_token_ids` leave out, only the logits of tokens that a row names are
touched, as a flat list of cells over all rows, each cell by elementwise float32 operations that
round once: a row comes out the same in any batch. `sample_reference` is the plain definition.

A ban adds -inf rather than writing it, so that NaN and inf stay to be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from headway.runtime.inputs import SampleRow

__all__ = ["adjust"]


def adjust(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    """Changes `logits` [rows, vocab] float32 in place, and only rows that ask for it.

    Raises ValueError for a token outside of the vocabulary.
    """
    _constrain(logits, rows)
    _allow(logits, rows)
    _ban(logits, rows)
    _bias(logits, rows)
    _penalise_repetition(logits, rows)
    _penalise_output(logits, rows)


def _constrain(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    for i, row in enumerate(rows):
        if row.mask is not None:
            logits[i] += torch.from_numpy(row.mask).to(logits.device)


def _allow(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    allowed = {
        i: tokens
        for i, row in enumerate(rows)
        if (tokens := row.sample.params.allowed_token_ids) is not None
    }
    if allowed:
        cells = _cells(allowed.items(), logits)
        kept = logits.take(cells)
        for i in allowed:
            logits[i] += -torch.inf
        logits.put_(cells, kept)


def _ban(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    if banned := [(i, tokens) for i, row in enumerate(rows) if (tokens := _banned(row))]:
        cells = _cells(banned, logits)
        _add(logits, cells, torch.full(cells.shape, -torch.inf, device=logits.device))


def _banned(row: SampleRow) -> list[int]:
    output = row.output_ids
    completed = [
        word[-1]
        for word in row.sample.bad_words
        if output[len(output) - len(word) + 1 :] == word[:-1]  # not where the output is shorter
    ]
    return [*row.suppressed, *completed]


def _bias(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    if biases := [
        (i, bias) for i, row in enumerate(rows) if (bias := row.sample.params.logit_bias)
    ]:
        amounts = [amount for _, bias in biases for amount in bias.values()]
        _add(logits, _cells(biases, logits), _per_row(amounts, logits))


def _penalise_repetition(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    penalties = [row.sample.params.repetition_penalty for row in rows]
    if repeating := [i for i, penalty in enumerate(penalties) if penalty != 1.0]:
        seen = [
            (i, ids) for i in repeating for ids in (rows[i].sample.prompt_ids, rows[i].output_ids)
        ]
        cells = _cells(seen, logits)
        penalty = _per_row(penalties, logits)[cells // logits.shape[1]].float()
        values = logits.take(cells)
        logits.put_(cells, torch.where(values > 0.0, values / penalty, values * penalty))


def _penalise_output(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    params = [row.sample.params for row in rows]
    if penalised := [i for i, p in enumerate(params) if p.frequency_penalty or p.presence_penalty]:
        output = _cells([(i, rows[i].output_ids) for i in penalised], logits)
        cells, counts = torch.unique(output, return_counts=True)
        row = cells // logits.shape[1]
        frequency = _per_row([p.frequency_penalty for p in params], logits)[row]
        presence = _per_row([p.presence_penalty for p in params], logits)[row]
        _add(logits, cells, -(frequency * counts + presence))


def _add(logits: Tensor, cells: Tensor, amounts: Tensor) -> None:
    """Adds an amount to each cell, once: a cell that comes twice comes with the same amount."""
    logits.put_(cells, logits.take(cells) + amounts.float())


def _cells(tokens: Collection[tuple[int, Collection[int]]], logits: Tensor) -> Tensor:
    """Of (row, its tokens): their places in the flattened logits, in the order given."""
    vocab = logits.shape[1]
    sizes = [len(ids) for _, ids in tokens]
    columns = np.fromiter(chain.from_iterable(ids for _, ids in tokens), np.int64, sum(sizes))
    outside = (columns < 0) | (columns >= vocab)
    if outside.any():  # it would be another row's cell
        raise ValueError(f"token {columns[outside][0]} is outside of the vocabulary [0, {vocab})")
    cells = np.repeat([row for row, _ in tokens], sizes) * vocab + columns
    return torch.from_numpy(cells).to(logits.device)


def _per_row(values: Iterable[float], logits: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=logits.device)
