"""Servers driven into states that a doctor must recognise, side by side, each for a while."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from headway.bench import serving
from headway.bench.figures import Wanted
from headway.clock import MonotonicClock
from headway.doctor.diagnosis import diagnose, worst
from headway.doctor.finding import Finding, Severity
from headway.doctor.sources import Server
from headway.doctor.watcher import Watcher, watch
from headway.errors import NotReachable
from headway.workload import Workload

__all__ = ["State", "found", "provoke", "shown"]

_BEGUN_WITHIN_S = 60.0
_POLL_S = 0.5
"""Not more often: a page of metrics costs both ends some milliseconds, times a dozen."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A server, what is asked of it, and what a doctor must say of it then; or others' servers."""

    args: Mapping[str, Any] = field(default_factory=dict)
    """Of its engine, by the names of `EngineArgs`."""
    workload: Workload | None = None
    """Longer than it is watched; None: nothing is asked."""
    begun: tuple[str, float] = ("request_success", 2)
    """Once this counter has so much, it is in the state."""
    windows: float = 1.0
    """For how long it is watched: a trend shows the better, the longer."""
    servers: tuple[str, ...] = ()
    """States whose servers are watched together; empty: its own alone."""
    by_command: bool = False
    """Who watches is `headway doctor`, a process of its own."""
    must: Mapping[str, str] = field(default_factory=dict)
    """Findings of at least a warning that there must be, each with a part of its cause."""
    may: frozenset[str] = frozenset()
    """Those that there may be: they follow from the same cause."""

    def is_named(self, findings: Sequence[Finding]) -> bool:
        """With its cause, and nothing else is."""
        complaints = _complaints(findings)
        return self.must.keys() <= complaints <= self.must.keys() | self.may and all(
            cause in found(findings, name).cause for name, cause in self.must.items()
        )


def provoke(
    states: Mapping[str, State], urls: Mapping[str, str], *, for_s: float, every_s: float
) -> dict[str, list[Finding]]:
    """Puts all servers under their loads at once, and gives the findings of each.

    On a busy machine a load may bring another state than it should. What is not named right is
    watched twice more, and has to be right both times.

    Raises AssertionError where a state does not begin, or its load ends before its watch.
    """

    def watched(attempt: int) -> dict[str, list[Finding]]:
        return asyncio.run(_provoke(states, urls, for_s, every_s, attempt))

    findings = watched(0)
    wrong = [name for name, state in states.items() if not state.is_named(findings[name])]
    if wrong:
        second, third = watched(1), watched(2)
        for name in wrong:
            right = states[name].is_named(second[name])
            findings[name] = third[name] if right else second[name]
    return findings


def _complaints(findings: Sequence[Finding]) -> set[str]:
    """Names of those that are at least a warning, but for pauses that a doctor puts down to the
    machine: where tests run there may be other load, and then that is so."""
    return {
        each.name
        for each in findings
        if each.severity >= Severity.WARNING
        and not (each.name == "itl_stalls" and each.cause.startswith("not large steps"))
    }


def found(findings: Sequence[Finding], name: str) -> Finding:
    """The one of that name."""
    (finding,) = (each for each in findings if each.name == name)
    return finding


def shown(findings: Sequence[Finding]) -> str:
    """For whoever reads why a test failed."""
    return "\n" + "\n".join(
        f"{one.severity.name:8} {one.name}: {one.what}" + f" [{one.cause}]" * bool(one.cause)
        for one in findings
    )


async def _provoke(
    states: Mapping[str, State],
    urls: Mapping[str, str],
    for_s: float,
    every_s: float,
    attempt: int,
) -> dict[str, list[Finding]]:
    with ThreadPoolExecutor(len(states)) as threads:

        async def one(name: str, state: State) -> list[Finding]:
            loop = asyncio.get_running_loop()
            watched = state.servers or (name,)
            sources = [Server(urls[each], headers={}) for each in watched]
            begun = [states[each] for each in watched]
            before = await loop.run_in_executor(threads, _counts, begun, sources)
            load = asyncio.create_task(_ask(state, sources[0].name, attempt))
            try:
                await loop.run_in_executor(threads, _await_begun, begun, sources, before)
                examine = _examine_by_command if state.by_command else _examine
                findings = await loop.run_in_executor(
                    threads, examine, sources, for_s * state.windows, every_s * state.windows
                )
                assert state.workload is None or not load.done(), load
                return findings
            finally:
                load.cancel()
                await asyncio.wait([load])

        async with asyncio.TaskGroup() as tasks:
            watching = {name: tasks.create_task(one(name, state)) for name, state in states.items()}
        return {name: task.result() for name, task in watching.items()}


async def _ask(state: State, url: str, attempt: int) -> None:
    if state.workload is None:
        return
    server = serving.Server(
        base_url=url,
        kind="completions",
        endpoint="/v1/completions",
        extra_body={"ignore_eos": True},
    )
    load = serving.Load(
        workload=state.workload,
        seeds=(state.workload.seed + attempt,),  # nothing of it is cached
        text=False,
        wanted=Wanted(metrics=(), percentiles=()),
    )
    await serving.measure(server, load, say=lambda _line: None)


def _counts(states: Sequence[State], sources: Sequence[Server]) -> list[float]:
    """Of each state's counter."""
    values = []
    for state, source in zip(states, sources, strict=True):
        (sample,) = source.read(time.monotonic).metrics.engines.values()
        values.append(sum(sample.counters.get(state.begun[0], {}).values()))
    return values


def _await_begun(
    states: Sequence[State], sources: Sequence[Server], before: Sequence[float]
) -> None:
    until = time.monotonic() + _BEGUN_WITHIN_S
    missing = [state for state in states if state.workload is not None]
    while missing:
        assert time.monotonic() < until, [state.begun for state in missing]
        time.sleep(_POLL_S)
        with contextlib.suppress(NotReachable):
            rises = zip(states, _counts(states, sources), before, strict=True)
            missing = [s for s, now, then in rises if s.workload and now - then < s.begun[1]]


def _examine(sources: Sequence[Server], for_s: float, every_s: float) -> list[Finding]:
    clock = MonotonicClock()
    watcher = Watcher(sources, clock=clock, window_s=10 * for_s)
    try:
        return diagnose(watch(watcher, clock=clock, sleep=time.sleep, for_s=for_s, every_s=every_s))
    finally:
        watcher.close()


def _examine_by_command(sources: Sequence[Server], for_s: float, every_s: float) -> list[Finding]:
    """As far as its JSON tells them. Its exit code must be that of the worst."""
    command = [sys.executable, "-m", "headway", "doctor", *(each.name for each in sources)]
    command += ["--for", f"{for_s:g}s", "--every", f"{every_s:g}s", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    findings = [
        Finding(
            name=each["name"],
            severity=Severity[each["severity"].upper()],
            what=each["what"],
            cause=each["cause"],
        )
        for each in report["findings"] + report["passed"]
    ]
    assert done.returncode == max(0, worst(findings) - Severity.INFO), done.stderr
    return findings
