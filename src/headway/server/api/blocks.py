"""An answer as blocks, one after another, as the APIs show it that give no single message:
reasoning, text, tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headway.core.plan import TokenLogprobs
from headway.server.generation import Answer, Piece
from headway.text.parts import CallArguments, CallStart, Part, Reasoning, Text

__all__ = ["Block", "Blocks", "Move", "blocks_of"]


@dataclass(slots=True)
class Block:
    """Parts of one kind that follow each other."""

    index: int
    kind: Literal["reasoning", "text", "call"]
    name: str = ""
    """Of the tool that is called."""
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the tokens of its text; only text has them."""

    @property
    def text(self) -> str:
        """A call's are its arguments."""
        return "".join(self.texts)


class Move(NamedTuple):
    """What happens to a block."""

    kind: Literal["open", "more", "close"]
    block: Block
    text: str = ""
    """What it grew by."""
    logprobs: Sequence[TokenLogprobs] = ()


class Blocks:
    """Takes pieces, tells what they do. At most one block is open: the last."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open = False
        self._logprobs: list[TokenLogprobs] = []
        """Of tokens whose text is still held back."""

    def add(self, piece: Piece) -> list[Move]:
        self._logprobs += piece.logprobs
        moves = [move for part in piece.parts for move in self._add(part)]
        if piece.parts:
            self._logprobs = []  # of tokens that were no text
        return moves

    def end(self) -> list[Move]:
        """Closes what is open."""
        if not self._open:
            return []
        self._open = False
        return [Move("close", self.all[-1])]

    def _add(self, part: Part) -> Iterator[Move]:
        if not (self._open and _continues(part, self.all[-1])):
            yield from self.end()
            self.all.append(_begun(len(self.all), part))
            self._open = True
            yield Move("open", self.all[-1])
        if isinstance(part, CallStart):
            return
        block, logprobs = self.all[-1], self._logprobs
        block.texts.append(part.text)
        if isinstance(part, Text):
            block.logprobs += logprobs
            self._logprobs = []
        yield Move("more", block, part.text, logprobs if isinstance(part, Text) else ())


def blocks_of(answer: Answer) -> list[Block]:
    """Those of an answer that is complete."""
    blocks = Blocks()
    for piece in answer.pieces:
        blocks.add(piece)
    return blocks.all


def _continues(part: Part, block: Block) -> bool:
    match part:
        case Text():
            return block.kind == "text"
        case Reasoning():
            return block.kind == "reasoning"
        case CallArguments():
            return block.kind == "call"
        case CallStart():
            return False


def _begun(index: int, part: Part) -> Block:
    match part:
        case Text():
            return Block(index, "text")
        case Reasoning():
            return Block(index, "reasoning")
        case CallStart():
            return Block(index, "call", part.name)
        case CallArguments():
            raise AssertionError("a call's arguments follow its start")
