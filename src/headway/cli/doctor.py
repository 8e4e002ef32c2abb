"""`headway doctor`: watches servers, or reads a recording, and says what is wrong and why.

Ends with 0 where all is well, 1 after a warning, 2 after something critical or for wrong usage, and
3 where there was nothing to judge by: a server that does not answer, say.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from headway.cli.terminal import Terminal, printable
from headway.clock import MonotonicClock
from headway.doctor.diagnosis import diagnose, worst
from headway.doctor.finding import Severity
from headway.doctor.live import live_lines
from headway.doctor.recording import recorded_series
from headway.doctor.report import as_json, as_lines
from headway.doctor.series import Series
from headway.doctor.sources import URL, Server
from headway.doctor.watcher import Watcher, watch
from headway.errors import HeadwayError, InvalidConfig, SourceError

__all__ = ["run"]

_FOR_S, _EVERY_S = 60.0, 1.0
_WRONG_USAGE, _UNKNOWN = 2, 3
"""The first is what argparse ends with."""


def run(args: argparse.Namespace) -> None:
    try:
        _run(args)
    except (HeadwayError, OSError) as error:
        Terminal().say(f"headway: error: {_explained(error)}")
        sys.exit(_WRONG_USAGE if isinstance(error, InvalidConfig) else _UNKNOWN)


def _run(args: argparse.Namespace) -> None:
    terminal = Terminal()
    _check(args, terminal)
    urls = [name for name in args.targets if "://" in name]
    if not urls:
        series = [recorded_series(path, last_s=args.for_s) for path in args.targets]
    elif args.watch:
        _live(args, terminal)
        return
    else:
        for_s = args.for_s or _FOR_S
        terminal.note(f"watching for {for_s:g} s")
        series = _watched(args, for_s)
    findings = diagnose(series)
    if args.json:
        text = json.dumps(as_json(series, findings), ensure_ascii=False, indent=2)
    else:
        text = "\n".join(as_lines(series, findings))
    terminal.write(text + "\n")
    sys.exit(max(0, worst(findings) - Severity.INFO))


def _check(args: argparse.Namespace, terminal: Terminal) -> None:
    """Raises InvalidConfig for usage that is wrong, SourceError for a file that is not there."""
    urls = [name for name in args.targets if "://" in name]
    files = [name for name in args.targets if "://" not in name]
    if len(set(args.targets)) < len(args.targets):
        raise InvalidConfig(URL, "the same is given twice")
    if urls and files:
        raise InvalidConfig(URL, f"servers or recordings, not {urls[0]} and {files[0]} together")
    for name in files:
        if not Path(name).is_file():
            raise SourceError(
                f"{name!r} is neither a URL like http://host:8000 nor a file that is there"
            )
    if files:
        _check_for_files(args)
    if urls and _every_s(args) * 2 > (args.for_s or _FOR_S):
        raise InvalidConfig("every", "must be at most half of --for: a trend needs samples")
    if args.watch and not terminal.shows:
        raise InvalidConfig("watch", "draws on a terminal; for a pipe there is --json")


def _check_for_files(args: argparse.Namespace) -> None:
    given = (
        ("watch", args.watch),
        ("every", args.every_s),
        ("header", args.header),
        ("insecure", args.insecure),
    )
    for option, value in given:
        if value:
            raise InvalidConfig(option, "is for servers alone")


def _every_s(args: argparse.Namespace) -> float:
    every_s: float = args.every_s or _EVERY_S
    return every_s


def _watcher(args: argparse.Namespace, window_s: float) -> Watcher:
    sources = [
        Server(url, headers=dict(args.header), insecure=args.insecure) for url in args.targets
    ]
    return Watcher(sources, clock=MonotonicClock(), window_s=window_s)


def _watched(args: argparse.Namespace, for_s: float) -> list[Series]:
    watcher = _watcher(args, 2 * for_s)
    try:
        return watch(
            watcher,
            clock=MonotonicClock(),
            sleep=time.sleep,
            for_s=for_s,
            every_s=_every_s(args),
        )
    finally:
        watcher.close()


def _live(args: argparse.Namespace, terminal: Terminal) -> None:
    """Until Ctrl-C, which is no error."""
    watcher = _watcher(args, args.for_s or _FOR_S)
    try:
        while True:
            watcher.read()
            columns, rows = shutil.get_terminal_size()
            terminal.redraw(live_lines(watcher.series(), columns=columns, rows=rows - 1))
            time.sleep(_every_s(args))
    except KeyboardInterrupt:
        terminal.write("\n")
    finally:
        watcher.close()


def _explained(error: Exception) -> str:
    if isinstance(error, OSError):
        return printable(f"{error.filename}: {error.strerror or error}")
    if isinstance(error, InvalidConfig) and error.field != URL:
        return printable(f"--{error}")
    return printable(str(error))
