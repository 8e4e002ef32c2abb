"""`headway doctor`: what it ends with, what it refuses, and what it shows."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headway.cli import doctor, main
from headway.cli.values import duration, pair
from recorded import RecordedEngine
from unit.cli.test_terminal import Screen
from unit.doctor.test_watcher import METRICS, Web, answering, web  # noqa: F401  a fixture

QUICK = ("--for", "20ms", "--every", "10ms")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int | str | None, str, str]:
    """Exit code, what was printed, what was said."""
    with pytest.raises(SystemExit) as caught:
        main(["doctor", *argv])
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def test_a_healthy_server_ends_with_zero(web: Web, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    web.pages = {"/metrics": (200, METRICS), "/health": (200, "")}
    code, out, err = run(capsys, web.url, *QUICK)
    assert (code, err) == (0, "watching for 0.02 s\n")
    assert out.endswith("healthy\n")


def test_json_is_one_object_and_its_verdict_is_the_exit_code(
    web: Web,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    web.pages = {"/metrics": (200, METRICS), "/health": (503, "")}
    code, out, _ = run(capsys, web.url, *QUICK, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (2, "critical")
    assert [each["name"] for each in found["findings"]][-1] == "engine_lost"


@pytest.fixture
def two_webs() -> Iterator[list[Web]]:
    """A server that has much to do, and one that has nothing."""
    with ExitStack() as stack:
        webs = [stack.enter_context(answering()) for _ in range(2)]
        waiting = METRICS.replace("running", "waiting").replace("} 2", "} 0")
        for web, running in zip(webs, ("} 40", "} 0"), strict=True):
            page = METRICS.replace("} 2", running) + waiting
            web.pages = {"/metrics": (200, page), "/health": (200, "")}
        yield webs


def test_several_servers_are_told_apart_and_judged_together(
    two_webs: list[Web], capsys: pytest.CaptureFixture[str]
) -> None:
    busy, idle = two_webs
    code, out, _ = run(capsys, busy.url, idle.url, *QUICK)
    assert code == 1
    alone, together = out.split("all engines\n\n")
    assert alone.index(f"{busy.url}: ") < alone.index(f"{idle.url}: ")
    imbalance = f"imbalance: 40 requests running and waiting on {busy.url}, 0 on {idle.url}"
    assert imbalance in " ".join(together.split())
    assert "imbalance" not in alone
    assert together.endswith("warning: imbalance\n")


def test_the_worst_of_several_servers_is_the_exit_code_and_named_in_json(
    two_webs: list[Web], capsys: pytest.CaptureFixture[str]
) -> None:
    busy, idle = two_webs
    idle.pages["/health"] = (503, "")
    code, out, _ = run(capsys, busy.url, idle.url, *QUICK, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (2, "critical")
    assert [each["name"] for each in found["engines"]] == [busy.url, idle.url]
    named = {(each["name"], each["engine"]) for each in found["findings"]}
    assert {("engine_lost", idle.url), ("imbalance", "")} <= named
    assert ("engine_lost", busy.url) not in named


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 1)])
def test_a_warning_ends_with_one(
    fails: bool, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    engine = RecordedEngine(path, num_kv_blocks=200)
    engine.executor.fail_at = frozenset({30} if fails else ())
    for index in range(3):
        engine.add(f"r{index}", [index, 1, 2], max_tokens=40)
    engine.run()
    engine.close()
    found, out, _ = run(capsys, str(path), "--json")
    names = {each["name"] for each in json.loads(out)["findings"] if each["severity"] == "warning"}
    assert found == code, out
    assert names == ({"steps_failed"} if fails else set())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("localhost:8000",), "neither a URL like http://host:8000 nor a file that is there"),
        (("http://127.0.0.1:9", *QUICK), "http://127.0.0.1:9 does not answer: Connection refused"),
        ((__file__,), "test_doctor.py: line 1"),
    ],
)
def test_what_cannot_be_judged_ends_with_three_and_says_what_would_work(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (3, "")
    assert message in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "required: URL"),
        (("http://h", "--for", "1x"), "argument --for"),
        (("http://h", "--watch", "--json"), "argument --json: not allowed with"),
        (("http://h", "--header"), "argument --header"),
        (("http://h", "http://h"), "error: URL: the same is given twice"),
        (("ftp://h",), "error: URL: must be like http://host:8000, not 'ftp://h'"),
        (("http://h", "--for", "1s"), "error: --every: must be at most half of --for"),
        (("http://h", __file__), "not http://h and"),
        ((__file__, "--watch"), "error: --watch: is for servers alone"),
        ((__file__, "--every", "1s"), "error: --every: is for servers alone"),
        ((__file__, "--header", "a=b"), "error: --header: is for servers alone"),
        ((__file__, "--insecure"), "error: --insecure: is for servers alone"),
        (("http://h", "--watch"), "error: --watch: draws on a terminal"),
    ],
)
def test_wrong_usage_ends_with_two(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_watching_redraws_until_interrupted_and_ends_quietly(
    web: Web,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web.pages = {"/metrics": (200, METRICS), "/health": (200, "")}
    screen, naps = Screen(), [0.0, 0.0]

    def nap(_seconds: float) -> None:
        if not naps:
            raise KeyboardInterrupt
        naps.pop()

    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(doctor.time, "sleep", nap)
    main(["doctor", web.url, "--watch"])
    frames = screen.getvalue().split("\x1b[H")
    assert len(frames) == 4
    assert "running" in frames[-1]
    assert frames[-1].endswith("healthy\x1b[K\n\x1b[J\n")


def test_values_of_options_are_read() -> None:
    assert [duration(text) for text in ("200ms", "60s", "1.5m", "2")] == [0.2, 60, 90, 2]
    for text in ("", "0s", "-1s", "1d", "s", "nan"):
        with pytest.raises(ValueError):  # noqa: PT011  argparse says the rest
            duration(text)
    assert pair("Authorization=Bearer a=b") == ("Authorization", "Bearer a=b")
    with pytest.raises(ValueError):  # noqa: PT011
        pair("Authorization")
