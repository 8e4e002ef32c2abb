"""Puts a server under a mixed load for long, and says whether anything was lost or grew.

    .venv/bin/python tests/soak/server_soak.py --minutes 30

Starts `headway serve`, measures what it can take of the load, then sends four fifths of that, in
rounds of a minute: a tenth of it is bad input, a sixth are clients that go away at some stage, and
some connections say nothing. After each round all that is under way is awaited. Then nothing may
run, wait or hold a block, and a moment later the memory, threads and files of each process are
noted.

Prints a line for each round, and exits with 1 if a request had no end or a wrong one, if an answer
was not the one that a quiet server gives, if a block was missing, or if a process grew.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from headway.bench.http import HttpClient
from soak.asking import CANARY, Ask, Ending, ask, bad_ask, good_ask, leave, say_nothing
from soak.served import IDLE, Served, Usage, gauges, growth, serving

__all__ = ["Limits", "Soak", "main"]

OPTIONS = ("--num-kv-blocks", "768", "--max-num-seqs", "32", "--max-num-queued-reqs", "64")
"""Few blocks: all of them are soon touched, so that memory can be flat, and evicted again and
again."""

_LOAD = 0.8
_BAD_SHARE, _LEAVING_SHARE, _CANARY_SHARE = 0.10, 0.17, 0.05
_SILENT = 8
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Limits:
    """What is no longer flat, and no longer an end."""

    grown_bytes: int = 8 * 2**20
    """Of one process, from the middle third of the rounds to the last."""
    grown_files: int = 4
    grown_threads: int = 4
    end_within_s: float = 60.0
    """From the sending of a request to its end."""
    idle_within_s: float = 10.0
    """From the end of the last request to gauges that say so."""


@dataclass
class Soak:
    """One run against one server."""

    url: str
    usage: Callable[[], dict[str, Usage]]
    rng: Random
    limits: Limits = Limits()
    rest_s: float = 1.5
    """After a round: one that has nothing to do gives memory back after a second."""
    say: Callable[[str], object] = print
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rounds: list[dict[str, Usage]] = field(default_factory=list)
    """What each process took after each round."""
    most_underway: int = 0
    """Requests at once, in this round so far."""

    def __post_init__(self) -> None:
        self._client = HttpClient(self.url, headers={})
        self._canary = Ask("/v1/completions", msgspec.json.encode(CANARY))
        self._num_underway = 0

    async def run(self, num_rounds: int, round_s: float) -> None:
        """Measures, then soaks; `problems` says what went wrong."""
        answer = await self._client.exchange("POST", self._canary.path, self._canary.body)
        text = msgspec.json.decode(answer.body)["choices"][0]["text"]
        self._canary = replace(self._canary, text=text)
        rate = _LOAD * await self.capacity(round_s / 2)
        self.say(f"{rate:.1f} requests per second, {_LOAD:.0%} of what it takes")
        await self.settle()
        for number in range(num_rounds):
            before, self.most_underway = self.counts.copy(), 0
            async with say_nothing(self.url, _SILENT):
                await self.load(rate, round_s)
                await self.settle()
            await asyncio.sleep(self.rest_s)
            self.rounds.append(self.usage())
            self.say(self._line(number, self.counts - before))
        self._client.close()
        self._check_growth()

    async def capacity(self, seconds: float, users: int = 24) -> float:
        """Good requests per second that so many users get answered, each asking again as long as
        there is time; until the last is answered, so that it is no overestimate."""
        loop = asyncio.get_running_loop()
        started, before = loop.time(), self.counts.total()

        async def user() -> None:
            while loop.time() < started + seconds:
                await self._ask(good_ask(self.rng))

        await asyncio.gather(*(user() for _ in range(users)))
        return (self.counts.total() - before) / (loop.time() - started)

    async def load(self, rate: float, seconds: float) -> None:
        """Sends requests as they come to a rate, whatever becomes of those before; waits for all
        of them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        due = loop.time() + self.rng.expovariate(rate)
        async with asyncio.TaskGroup() as tasks:
            while due < until:
                await asyncio.sleep(max(0, due - loop.time()))
                tasks.create_task(self._one())
                due += self.rng.expovariate(rate)

    async def settle(self) -> None:
        """Nothing is under way; the server must be as if nothing had been."""
        self._client.close()  # so that its idle connections are not among the server's files
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.idle_within_s
        while any((state := await self._gauges()).values()) and loop.time() < until:
            await asyncio.sleep(0.05)
        if any(state.values()):
            self.problems.append(f"nothing is under way, but {state}")
        health = await self._client.exchange("GET", "/health")
        if health.status != 200:
            self.problems.append(f"/health answers {health.status}")

    async def _gauges(self) -> dict[str, float]:
        answer = await self._client.exchange("GET", "/metrics")
        return gauges(answer.body.decode(), *IDLE)

    async def _one(self) -> None:
        kind = self.rng.random()
        if kind < _BAD_SHARE:
            await self._ask(bad_ask(self.rng))
        elif kind < _BAD_SHARE + _LEAVING_SHARE:
            request = good_ask(self.rng) if self.rng.random() < 0.8 else bad_ask(self.rng)
            await self._count(request, leave(self.url, request, self.rng))
        elif kind < _BAD_SHARE + _LEAVING_SHARE + _CANARY_SHARE:
            await self._ask(self._canary)
        else:
            await self._ask(good_ask(self.rng))

    async def _ask(self, request: Ask) -> None:
        await self._count(request, ask(self._client, request))

    async def _count(self, request: Ask, asking: Coroutine[None, None, Ending]) -> None:
        self._num_underway += 1
        self.most_underway = max(self.most_underway, self._num_underway)
        try:
            async with asyncio.timeout(self.limits.end_within_s):
                ending = await asking
        except TimeoutError:
            said = f"no end within {self.limits.end_within_s:g} s: {request}"
            ending = Ending("endless", said)
        self._num_underway -= 1
        self.counts[ending.word] += 1
        if ending.problem is not None:
            self.problems.append(ending.problem)

    def _line(self, number: int, counts: Counter[str]) -> str:
        words = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        words += f", {self.most_underway} at once"
        taken = "; ".join(
            f"{role} {usage.anonymous_bytes / 2**20:.1f} MiB, {usage.threads} threads, "
            f"{usage.files} files"
            for role, usage in self.rounds[-1].items()
        )
        return f"round {number + 1}: {words}; {taken}"

    def _check_growth(self) -> None:
        limits = self.limits
        for role in self.rounds[-1]:
            samples = [usages[role] for usages in self.rounds if role in usages]
            if len(samples) < len(self.rounds) or set(self.rounds[0]) - set(self.rounds[-1]):
                self.problems.append(f"not the same processes in every round: {role}")
                continue
            for name, limit in (
                ("anonymous_bytes", limits.grown_bytes),
                ("threads", limits.grown_threads),
                ("files", limits.grown_files),
            ):
                grown = growth([getattr(sample, name) for sample in samples])
                self.say(f"{role}: {name} {grown:+,} from the middle third to the last")
                if grown > limit:
                    self.problems.append(f"{role} grew by {grown:,} {name}, over {limit:,}")


async def soak(served: Served, rng: Random, limits: Limits, num_rounds: int, round_s: float) -> int:
    """Runs it and prints the report; returns how many problems there were."""
    run = Soak(served.url, served.usage, rng, limits)
    await run.run(num_rounds, round_s)
    print("in all:", ", ".join(f"{count} {word}" for word, count in sorted(run.counts.items())))
    for problem in itertools.islice(run.problems, _SHOWN_PROBLEMS):
        print("PROBLEM:", problem)
    print(f"{len(run.problems)} problems" if run.problems else "nothing was lost, nothing grew")
    return len(run.problems)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=30, help="of load (%(default)s)")
    parser.add_argument("--round-seconds", type=float, default=60, help="(%(default)s)")
    parser.add_argument(
        "--grown-mib", type=float, default=8, help="by which no process may grow (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the load (%(default)s)")
    parser.add_argument(
        "options", nargs="*", help=f"of headway serve, after --; default: {' '.join(OPTIONS)}"
    )
    args = parser.parse_args(argv)
    num_rounds = max(3, round(args.minutes * 60 / args.round_seconds))
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        with serving(*(args.options or OPTIONS), log=log) as served:
            limits = Limits(grown_bytes=int(args.grown_mib * 2**20))
            coming = soak(served, Random(args.seed), limits, num_rounds, args.round_seconds)
            failed = asyncio.run(coming) > 0
            if served.process.poll() is not None:
                print(f"PROBLEM: the server ended with {served.process.returncode}")
                failed = True
        if failed:
            print("the end of its log:", log.read_text()[-3000:], sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
