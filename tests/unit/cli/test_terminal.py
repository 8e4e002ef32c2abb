from __future__ import annotations

import io
import signal
import sys

import pytest

from headway.cli.terminal import Terminal, interruptible


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters_and_a_file_gets_all() -> None:
    text = "a\x1b]52;c;aGk=\x07b\x9b2Jc\r\n\td\x7fé"
    screen, file = Screen(), io.StringIO()
    Terminal(io.StringIO(), screen, io.StringIO(), {}).write(text)
    Terminal(io.StringIO(), file, io.StringIO(), {}).write(text)
    assert screen.getvalue() == "a]52;c;aGk=b2Jc\n\tdé"
    assert file.getvalue() == text


def test_what_is_said_of_a_file_has_no_control_characters() -> None:
    errors = Screen()
    terminal = Terminal(io.StringIO(), io.StringIO(), errors, {"NO_COLOR": "1"})
    terminal.say("key a\x1b]0;owned\x07")
    terminal.note("b\x1b[2J")
    assert errors.getvalue() == "key a]0;owned\nb[2J\n"


def test_a_frame_is_drawn_over_the_one_before_and_moves_nothing_else() -> None:
    screen = Screen()
    Terminal(io.StringIO(), screen, io.StringIO(), {}).redraw(["a\x1b[2J", "b"])
    assert screen.getvalue() == "\x1b[Ha[2J\x1b[K\nb\x1b[K\n\x1b[J"


@pytest.mark.parametrize(
    ("stream", "environment", "shown"),
    [
        (Screen, {"TERM": "xterm"}, "\x1b[2mwait\x1b[0m\n"),
        (Screen, {"TERM": "xterm", "NO_COLOR": "1"}, "wait\n"),
        (Screen, {"TERM": "dumb"}, "wait\n"),
        (io.StringIO, {"TERM": "xterm"}, "wait\n"),
    ],
)
def test_notes_are_dim_on_a_terminal_that_can(
    stream: type[io.StringIO], environment: dict[str, str], shown: str
) -> None:
    errors = stream()
    Terminal(io.StringIO(), io.StringIO(), errors, environment).note("wait")
    assert errors.getvalue() == shown


def test_a_pipe_is_read_a_line_at_a_time_without_a_prompt() -> None:
    out, errors = io.StringIO(), io.StringIO()
    terminal = Terminal(io.StringIO("one\n\ntwo"), out, errors, {})
    assert not terminal.interactive
    assert [terminal.read("> ") for _ in range(3)] == ["one", "", "two"]
    with pytest.raises(EOFError):
        terminal.read("> ")
    assert (out.getvalue(), errors.getvalue()) == ("", "")


def test_what_is_no_text_is_read_all_the_same() -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8")
    assert Terminal(stdin, io.StringIO(), io.StringIO(), {}).read("> ") == "caf\ufffd"


def test_streams_that_are_closed_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    terminal = Terminal()
    terminal.write("x")
    terminal.note("x")
    with pytest.raises(EOFError):
        terminal.read("> ")


def test_an_interrupt_is_noted_where_it_may_wait_and_raised_where_not() -> None:
    with interruptible() as interrupt:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupt.deferred = True
        signal.raise_signal(signal.SIGINT)
        assert interrupt.noted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
