"""The format of a recording: JSON lines, one for each call that changes a scheduler.

The first line is a header with the configuration, the last an `end`; between them the calls
come in their order, each with its time and what came of it. Requests are known by their
number, the order in which they were accepted. Of their tokens a recording holds lengths and a
chain of hashes over the full blocks, and the tokens themselves where that was asked for.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from headway.errors import InvalidRecording
from headway.metrics import Costs
from headway.record.setup import SchedulerConfig

__all__ = [
    "VERSION",
    "Added",
    "Applied",
    "Arrival",
    "Ended",
    "Finished",
    "Header",
    "Left",
    "Line",
    "Planned",
    "Recording",
    "Refused",
    "Taken",
    "block_hashes",
    "encode",
]

VERSION = 1
_HASH_BYTES = 16


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    pass


class _Line(_Record, tag_field="kind"):
    pass


class Header(_Line, tag="headway-recording"):
    version: int
    config: SchedulerConfig


class Arrival(_Record):
    """A request that was accepted, and what of it matters to the scheduler."""

    number: int
    request_id: str
    arrival_s: float
    num_tokens: int
    blocks: list[str]
    """`block_hashes` of the prompt."""
    max_tokens: int | None
    min_tokens: int = 0
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None
    queue_timeout_s: float | None = None
    index: int = 0
    salt: str | None = None
    """Stands for the `cache_salt`, and does not tell it."""
    prompt_logprobs: bool = False
    constrained: bool = False
    """Its output was held to something: of use to who reads the recording alone."""
    token_ids: list[int] | None = None


class Added(_Line, tag="add"):
    """Requests were accepted, all at once."""

    time_s: float
    requests: list[Arrival]


class Ended(_Record):
    """How a request ended."""

    number: int
    reason: str
    """Empty: it had not when the recording was closed."""
    num_output_tokens: int
    blocks: list[str]
    """`block_hashes` of prompt and output, less those of the prompt alone."""
    token_ids: list[int] | None = None
    """Of the output."""


class Finished(_Line, tag="finish"):
    """A request was ended from outside."""

    time_s: float
    ended: Ended


class Planned(_Line, tag="plan"):
    """A plan was made. It is written before the plan is run."""

    step: int
    time_s: float
    costs: Costs | None = None
    chunks: list[tuple[int, int, int]] = []
    """Request, position of the first token, tokens."""
    drafts: dict[int, int] = {}
    """Request → of its tokens, drafts."""
    proposed: dict[int, int] = {}
    """Request → drafts that the plan was made with."""
    zero_blocks: tuple[int, ...] = ()
    copies_out: tuple[tuple[int, int], ...] = ()
    copies_in: tuple[tuple[int, int], ...] = ()

    @property
    def to_run(self) -> bool:
        return bool(self.chunks or self.copies_out or self.copies_in)


class Taken(_Record):
    """What a step's record has beside its plan; fields as in `StepRecord`."""

    step: int
    admissions: list[tuple[int, str, int, int]] = []
    """Request, kind, tokens looked up, tokens hit."""
    num_running: int = 0
    waiting: dict[str, int] = {}
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    evictions: int = 0
    preemptions: dict[str, int] = {}
    recomputed_tokens: int = 0
    discarded_tokens: int = 0
    num_accepted_tokens: int = 0
    failed: bool = False


class Applied(_Line, tag="result"):
    """A result was applied, or a failure; or what had ended was asked for."""

    time_s: float
    step: int | None = None
    """Whose result; None: nothing had been run."""
    failed: str | None = None
    """Why this plan and all after it are void."""
    errors: dict[int, str] = {}
    """Request → why it alone failed."""
    accepted: dict[int, int] = {}
    """Request → drafts that were, up to its end."""
    records: list[Taken] = []
    ended: list[Ended] = []


class Left(_Line, tag="end"):
    """The recording was closed."""

    unfinished: list[Ended] = []


class Refused(_Line, tag="refuse"):
    """In a replay alone: what the recording accepted was not."""

    time_s: float
    numbers: list[int]
    error: str


Line: TypeAlias = Added | Refused | Finished | Planned | Applied | Left


class _Version(msgspec.Struct, tag_field="kind", tag="headway-recording"):
    version: int


_encoder = msgspec.json.Encoder()
_line_decoder = msgspec.json.Decoder(Line)
_version_decoder = msgspec.json.Decoder(_Version)
_header_decoder = msgspec.json.Decoder(Header)


def encode(line: Header | Line) -> bytes:
    """One line of a recording, with its end."""
    return _encoder.encode(line) + b"\n"


class Recording:
    """A recording in a file, which is read anew each time it is iterated over.

    Raises InvalidRecording, naming line and field, for what is none; that it is whole is
    known at its end. A server that was killed leaves a recording without one: with `cut_ok`
    such a recording ends with its last whole line.
    """

    def __init__(self, path: str | PathLike[str], *, cut_ok: bool = False) -> None:
        self.path = Path(path)
        self._cut_ok = cut_ok
        _, first = next(self._lines(), (1, b""))
        if not first:
            raise InvalidRecording(self.path, 1, "kind", "the file is empty, and no recording")
        version = _decode(self.path, _version_decoder, 1, first).version
        if version != VERSION:
            raise InvalidRecording(
                self.path, 1, "version", f"{version}; this Headway reads {VERSION}"
            )
        self.config: SchedulerConfig = _decode(self.path, _header_decoder, 1, first).config

    def __iter__(self) -> Iterator[Line]:
        lines = self._lines()
        number, _ = next(lines)
        line: Line | None = None
        for number, text in lines:
            if isinstance(line, Left):
                raise InvalidRecording(
                    self.path, number, "kind", "follows the end of the recording"
                )
            line = _decode(self.path, _line_decoder, number, text)
            yield line
        if not isinstance(line, Left) and not self._cut_ok:
            raise InvalidRecording(
                self.path, number + 1, "kind", "the recording is cut: it has no end"
            )

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.endswith(b"\n"):
                    yield number, text
                elif not self._cut_ok:
                    raise InvalidRecording(
                        self.path, number, "kind", "the recording is cut within the line"
                    )


def _decode(path: Path, decoder: msgspec.json.Decoder[Any], number: int, text: bytes) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        field = re.sub(r"^\$\.?", "", place.strip("`")) or "kind"
        missing = re.search(r"required field `(\w+)`", message)
        raise InvalidRecording(path, number, missing[1] if missing else field, message) from error
    except msgspec.DecodeError as error:
        raise InvalidRecording(path, number, "kind", f"is no JSON: {error}") from error


def block_hashes(token_ids: Sequence[int], block_size: int, parent: str = "") -> list[str]:
    """A SHA-256 chain over the full blocks: each stands for its tokens and all before them.

    The same on every machine and in every process. `parent`: hash of the block before.
    """
    count = len(token_ids) // block_size
    tokens = array("I", token_ids[: count * block_size])
    if sys.byteorder == "big":
        tokens.byteswap()
    data, width = tokens.tobytes(), block_size * tokens.itemsize
    digest = bytes.fromhex(parent)
    hashes = []
    for offset in range(0, len(data), width):
        digest = sha256(digest + data[offset : offset + width]).digest()[:_HASH_BYTES]
        hashes.append(digest.hex())
    return hashes
