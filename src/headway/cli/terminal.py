"""The terminal, or the files in its place: what was asked for goes to standard output, all talk
about it to standard error, so that a command's output can be piped on."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

__all__ = ["Interrupt", "Terminal", "interruptible", "printable"]

_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CONTROL_CHARACTERS = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
)


def printable(text: str) -> str:
    """Without control characters: what a file or a model says must not move the cursor or reach
    the clipboard."""
    return text.translate(_CONTROL_CHARACTERS)


class Terminal:
    """Streams and what they can show. Styles are left out where a stream is no terminal, or
    `NO_COLOR` is set."""

    def __init__(
        self,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        # Python has None for a stream that was closed before it began, as for a daemon.
        self._stdin: TextIO | None = stdin or sys.stdin
        self._stdout: TextIO | None = stdout or sys.stdout
        self._stderr: TextIO | None = stderr or sys.stderr
        self._plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
        if isinstance(self._stdin, io.TextIOWrapper):
            self._stdin.reconfigure(errors="replace")
        self.interactive = _is_terminal(self._stdin)
        """A person types."""
        self.shows = _is_terminal(self._stdout)
        """What is written is seen, and not piped on."""

    def write(self, text: str) -> None:
        """A piece of the answer, shown at once. A terminal gets no control characters."""
        _write(self._stdout, printable(text) if self.shows else text)

    def redraw(self, lines: Sequence[str]) -> None:
        """In the place of all that a terminal shows; without flicker, as nothing is cleared before
        it is written over."""
        shown = "".join(f"{printable(line)}{_CLEAR_LINE}\n" for line in lines)
        _write(self._stdout, f"{_HOME}{shown}{_CLEAR_BELOW}")

    def say(self, line: str) -> None:
        """A line about what is being done, or what is wrong. It may quote a file or a model, so
        it has no control characters either."""
        _write(self._stderr, printable(line) + "\n")

    def note(self, line: str) -> None:
        """The same, in the background."""
        text = self._styled(_DIM, printable(line), self._stderr)
        _write(self._stderr, text + "\n")

    def read(self, prompt: str) -> str:
        """The next line. Raises EOFError at the end, and KeyboardInterrupt."""
        if not self.interactive:
            line = "" if self._stdin is None else self._stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")
        if self.shows:
            import readline  # noqa: F401, PLC0415  gives `input` history and editing

            # Readline must know what takes no room, to place its cursor.
            return input(self._styled(_BOLD, prompt, self._stdout, "\x01", "\x02"))
        _write(self._stderr, self._styled(_BOLD, prompt, self._stderr))
        return input()

    def _styled(
        self, style: str, text: str, stream: TextIO | None, before: str = "", after: str = ""
    ) -> str:
        if self._plain or not _is_terminal(stream):
            return text
        return f"{before}{style}{after}{text}{before}{_PLAIN}{after}"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:
        stream.write(text)
        stream.flush()


class Interrupt:
    """What Ctrl-C came to.

    Attributes:
        deferred: the first Ctrl-C is only noted, so that it falls between two steps of a model
            and not into one; a second one raises KeyboardInterrupt, as the first does otherwise.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.noted = False

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        if not self.deferred or self.noted:
            raise KeyboardInterrupt
        self.noted = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Ctrl-C is the interrupt's, until the block is left. For the main thread alone."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
