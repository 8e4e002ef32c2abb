"""Requests that somebody's users once sent: when they came, how long they were, what they shared.

Two published formats are read, a line at a time:

- Azure's (LLM inference traces of AzurePublicDataset): CSV of TIMESTAMP, ContextTokens and
  GeneratedTokens. Nothing is known of the text, so prompts share nothing.
- Mooncake's (FAST'25 release): JSON lines of timestamp (ms), input_length, output_length and
  hash_ids, one for each block of 512 tokens of the prompt. Equal ids become equal tokens, and, as
  an id stands for all before it, equal prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from headway.errors import InvalidConfig
from headway.workload.items import WorkItem
from headway.workload.texts import Text

__all__ = ["BLOCK", "Replay", "Trace", "TraceFormat"]

TraceFormat = Literal["auto", "azure", "mooncake"]

BLOCK = 512
"""Tokens of a prompt that have one hash id."""

_LEAST_BLOCK = 8
"""So many random tokens are never the same by chance, of few different words either."""
_LONGEST_LINE = 1 << 20
_MOST_ROWS = 1_000_000
_AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace, or a part of one, reported as a class."""

    name: str
    path: str
    """Of the file; in a workload's file, from there."""
    format: TraceFormat = "auto"
    """auto: by the first line."""
    start_s: float = 0.0
    """Where in the trace to begin, in its own time."""
    duration_s: float | None = None
    """How much of it to take, in its own time; None: all."""
    num_prompts: int | None = None
    """Requests at most, the first ones; None: all."""
    rate_scale: float = 1.0
    """2: requests come twice as fast as they did."""
    length_scale: float = 1.0
    """0.5: prompts and answers are half as long. In Mooncake's format the blocks are, in whole
    tokens, and the prompts of so many of them."""
    max_input_len: int | None = None
    """Longer prompts are cut to it, once scaled."""
    max_output_len: int | None = None

    @property
    def users(self) -> int | None:
        """None: no closed loop."""
        return None

    def check(self, field: str) -> None:
        """Raises InvalidConfig, naming `field` and what is wrong in it; reads no file."""
        if not 0 <= self.start_s < math.inf:
            raise InvalidConfig(f"{field}.start_s", f"must be from 0, not {self.start_s}")
        for name in ("duration_s", "rate_scale", "length_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidConfig(f"{field}.{name}", f"must be above 0 and finite, not {value}")
        for name in ("num_prompts", "max_input_len", "max_output_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{field}.{name}", f"must be at least 1, not {value}")

    def items(self, seed: int, ids: range) -> list[WorkItem]:
        """Its requests. Raises InvalidConfig (`workload`) that names the file and the line for what
        cannot be read."""
        return self.replay(seed, ids).items

    def replay(self, seed: int, ids: range) -> Replay:
        """Its requests, and what was done to them. Raises like `items`."""
        items = []
        cut_inputs = cut_outputs = 0
        shares = False
        with closing(_rows(self)) as rows:
            for index, row in enumerate(rows):
                shares = row.hash_ids is not None
                prompt = self._prompt(row, f"{seed}/{self.name}", index, ids)
                length = sum(text.len for text in prompt)
                most = self.max_input_len or length
                cut_inputs += length > most
                output_len = max(1, round(row.output_len * self.length_scale))
                most_output = self.max_output_len or output_len
                cut_outputs += output_len > most_output
                arrival_s = (row.at_s - self.start_s) / self.rate_scale
                items.append(
                    WorkItem(self.name, arrival_s, _cut(prompt, most), min(output_len, most_output))
                )
        return Replay(items, cut_inputs, cut_outputs, shares)

    def _prompt(self, row: _Row, key: str, index: int, ids: range) -> tuple[Text, ...]:
        if row.hash_ids is None:
            length = max(1, round(row.input_len * self.length_scale))
            return (Text(f"{key}/prompt {index}", length, ids),)
        block = round(BLOCK * self.length_scale)
        *whole, last = row.hash_ids
        rest = row.input_len - BLOCK * len(whole)
        lengths = [block] * len(whole) + [max(1, round(rest * block / BLOCK))]
        return tuple(
            Text(f"{key}/block {number}", length, ids)
            for number, length in zip((*whole, last), lengths, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """What a trace comes to."""

    items: list[WorkItem]
    cut_inputs: int
    """Prompts that were longer than `max_input_len`."""
    cut_outputs: int
    shares_prefixes: bool
    """The format tells what prompts have in common."""


@dataclass(frozen=True, slots=True)
class _Row:
    at_s: float
    """Since the first of the trace."""
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] | None = None


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_MOONCAKE = msgspec.json.Decoder(_MooncakeRow)


def _cut(prompt: tuple[Text, ...], most: int) -> tuple[Text, ...]:
    kept = []
    for text in prompt:
        if most <= 0:
            break
        kept.append(text if text.len <= most else Text(text.key, most, text.ids))
        most -= text.len
    return tuple(kept)


def _rows(trace: Trace) -> Generator[_Row]:
    """Those that are wanted, streamed: of a large file no more is read than is used."""
    try:
        with Path(trace.path).open("rb") as file:
            found = 0
            for found, row in enumerate(islice(_within(trace, file), trace.num_prompts), start=1):
                if found > _MOST_ROWS:
                    raise _Wrong(f"has over {_MOST_ROWS:,} requests; num_prompts or duration_s")
                yield row
            if not found:
                raise _Wrong("has no requests from start_s on")
    except OSError as error:
        raise InvalidConfig("workload", f"{trace.path}: {error.strerror or error}") from None
    except _Wrong as error:
        raise InvalidConfig("workload", f"{trace.path}: {error}") from None


def _within(trace: Trace, file: BinaryIO) -> Iterator[_Row]:
    end_s = math.inf if trace.duration_s is None else trace.start_s + trace.duration_s
    for row in _ordered(trace, file):
        if row.at_s >= end_s:
            return
        if row.at_s >= trace.start_s:
            yield row


def _ordered(trace: Trace, file: BinaryIO) -> Iterator[_Row]:
    """Every row, with its time from the first, and errors with their line."""
    mooncake = _is_mooncake(trace, file)
    if mooncake and round(BLOCK * trace.length_scale) < _LEAST_BLOCK:
        least = _LEAST_BLOCK / BLOCK
        raise _Wrong(
            f"length_scale must be at least {least:g}: a block needs {_LEAST_BLOCK} tokens"
        )
    first = last = None
    for number, line in _lines(file):
        try:
            at_s, row = _mooncake(line) if mooncake else _azure(line)
        except (ValueError, msgspec.MsgspecError) as error:
            raise _Wrong(f"line {number}: {error}") from None
        first = at_s if first is None else first
        if last is not None and at_s < last:
            raise _Wrong(f"line {number}: comes before the one above it")
        last = at_s
        yield _Row(at_s - first, row.input_len, row.output_len, row.hash_ids)


def _is_mooncake(trace: Trace, file: BinaryIO) -> bool:
    """Leaves `file` at its first request; a CSV's has the number 2."""
    begin = file.readline(_LONGEST_LINE)
    if begin.decode("utf-8-sig", errors="replace").strip().split(",") == _AZURE:
        found: TraceFormat = "azure"
    elif begin.lstrip().startswith(b"{"):
        found = "mooncake"
    else:
        raise _Wrong(
            f"is no trace: it begins neither with {','.join(_AZURE)} nor with a JSON object"
        )
    if trace.format not in ("auto", found):
        raise _Wrong(f"is in the format {found}, not {trace.format}")
    if found == "mooncake":
        file.seek(0)
    return found == "mooncake"


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 1 if file.tell() else 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
            raise _Wrong(f"line {number}: is longer than {_LONGEST_LINE:,} bytes")
        if line.strip():
            yield number, line


def _azure(line: bytes) -> tuple[float, _Row]:
    fields = line.decode().strip().split(",")
    if len(fields) != len(_AZURE):
        raise ValueError(f"has {len(fields)} fields, not {len(_AZURE)}")
    at = datetime.fromisoformat(fields[0])
    # A time without a zone is taken as UTC: in a local one an hour may come twice.
    at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return at_s, _lengths(int(fields[1]), int(fields[2]))


def _mooncake(line: bytes) -> tuple[float, _Row]:
    row = _MOONCAKE.decode(line)
    if len(row.hash_ids) != math.ceil(row.input_length / BLOCK):
        raise ValueError(
            f"has {len(row.hash_ids)} hash_ids for {row.input_length} tokens; one for each {BLOCK}"
        )
    return row.timestamp / 1e3, _lengths(row.input_length, row.output_length, row.hash_ids)


def _lengths(input_len: int, output_len: int, hash_ids: tuple[int, ...] | None = None) -> _Row:
    """With no time yet. An answer of nothing becomes one of a token: there is no smaller."""
    if input_len < 1 or output_len < 0:
        raise ValueError(f"a prompt of {input_len} tokens and an answer of {output_len}")
    return _Row(0.0, input_len, output_len, hash_ids)


class _Wrong(Exception):
    """Of the file; it is named where it was opened."""
