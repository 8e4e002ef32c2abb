"""Asks a server for three times what it can take, and says what that costs whom.

    .venv/bin/python tests/soak/overload.py --seconds 30

Starts `headway serve` with a short queue. First as many clients as it runs and queues at once ask
again and again: that is all that it can take. Then requests of the same kind
come at three times that rate, whatever becomes of those before. Both times what was accepted found
the same batch and the same queue before it, so it must have taken as long.

Prints the figures, and exits with 1 if rejections were slow (95 of 100 under 50 ms and 99 under
200 ms, from sending to the whole answer at the client, connecting included), if accepted requests
took longer, or if memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from headway.bench.http import HttpClient
from soak.asking import VOCABULARY
from soak.served import Served, serving

__all__ = ["Figures", "Overload", "Seen", "main", "percentile"]

_TIMES_CAPACITY = 3.0
_ASK_AGAIN_S = 0.1
_PROMPT_TOKENS, _OUTPUT_TOKENS = 64, 32


@dataclass(frozen=True)
class Limits:
    rejection_p95_s: float = 0.050
    rejection_p99_s: float = 0.200
    slower: float = 1.25
    """Latency of accepted requests at three times capacity, against that at capacity; the queue is
    always full there, which at capacity it is but for moments."""
    grown_bytes: int = 16 * 2**20

    def times(self, lenience: float) -> Limits:
        return Limits(
            self.rejection_p95_s * lenience,
            self.rejection_p99_s * lenience,
            self.slower * lenience,
            int(self.grown_bytes * lenience),
        )


@dataclass
class Seen:
    """What clients saw, in seconds from sending."""

    rejected_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2el_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    capacity: float
    """Requests per second."""
    at_capacity: Seen
    beyond: Seen
    grown_bytes: dict[str, int]
    """By process, while the load was beyond capacity."""

    def lines(self) -> list[str]:
        seen = self.beyond
        offered = len(seen.rejected_s) + len(seen.e2el_s)
        lines = [
            f"capacity {self.capacity:.1f} requests per second; of {offered} at "
            f"{_TIMES_CAPACITY:g} times that {len(seen.rejected_s)} were rejected",
            f"rejections    {_row(seen.rejected_s)}",
        ]
        for name, field_name in (("first token", "ttft_s"), ("whole answer", "e2el_s")):
            for when, those in (("at capacity", self.at_capacity), ("beyond it", seen)):
                lines.append(f"{name:12}  {_row(getattr(those, field_name))}  {when}")
        grown = (f"{role} {grown / 2**20:+.1f} MiB" for role, grown in self.grown_bytes.items())
        return [*lines, f"memory        {', '.join(grown)}"]

    def problems(self, limits: Limits) -> list[str]:
        found = [*self.at_capacity.problems, *self.beyond.problems]
        rejected = self.beyond.rejected_s
        if not rejected:
            return [*found, "nothing was rejected"]
        for percent, limit_s in ((95, limits.rejection_p95_s), (99, limits.rejection_p99_s)):
            if (took_s := percentile(rejected, percent)) > limit_s:
                found.append(f"{percent} of 100 rejections took up to {took_s * 1e3:.0f} ms")
        for name in ("ttft_s", "e2el_s"):
            before, after = (
                percentile(getattr(seen, name), 95) for seen in (self.at_capacity, self.beyond)
            )
            if after > limits.slower * before:
                found.append(f"{name} of accepted requests, p95: {before:.3f}, then {after:.3f}")
        for role, grown in self.grown_bytes.items():
            if grown > limits.grown_bytes:
                found.append(f"{role} grew by {grown / 2**20:.1f} MiB")
        return found


class Overload:
    """Loads one server, first as far as it goes, then further."""

    def __init__(self, served: Served, places: int, rng: Random) -> None:
        """`places`: requests that it runs and queues at once."""
        self._served = served
        self._places = places
        self._rng = rng
        self._client = HttpClient(served.url, headers={})
        self._loop = asyncio.get_running_loop()

    async def run(self, seconds: float) -> Figures:
        """Each load begins with a quarter of that which does not count, for what is touched once
        and for queues to fill."""
        await self._saturate(seconds / 4)
        at_capacity, capacity = await self._saturate(seconds)
        beyond = Seen()
        async with asyncio.TaskGroup() as tasks:
            await self._send(tasks, _TIMES_CAPACITY * capacity, seconds / 4, Seen())
            before = self._memory()
            await self._send(tasks, _TIMES_CAPACITY * capacity, seconds, beyond)
            after = self._memory()
        self._client.close()
        grown = {role: taken - before.get(role, 0) for role, taken in after.items()}
        return Figures(capacity, at_capacity, beyond, grown)

    async def _saturate(self, seconds: float) -> tuple[Seen, float]:
        """What as many clients see as there are places, and how much of it goes in a second."""
        seen = Seen()
        started = self._loop.time()

        async def user() -> None:
            while self._loop.time() < started + seconds:
                num_rejected = len(seen.rejected_s)
                await self._ask(seen)
                if len(seen.rejected_s) > num_rejected:  # at the start all come at once
                    await asyncio.sleep(_ASK_AGAIN_S)

        await asyncio.gather(*(user() for _ in range(self._places)))
        return seen, len(seen.e2el_s) / (self._loop.time() - started)

    async def _send(
        self, tasks: asyncio.TaskGroup, rate: float, seconds: float, seen: Seen
    ) -> None:
        """Requests as they come to a rate, without waiting for their ends."""
        until = self._loop.time() + seconds
        due = self._loop.time()
        while due < until:
            await asyncio.sleep(max(0, due - self._loop.time()))
            tasks.create_task(self._ask(seen))
            due += self._rng.expovariate(rate)

    async def _ask(self, seen: Seen) -> None:
        body = {
            "prompt": [self._rng.randrange(3, VOCABULARY) for _ in range(_PROMPT_TOKENS)],
            "max_tokens": _OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        content = json.dumps(body).encode()
        came_s: list[float] = []
        sent = self._loop.time()
        try:
            answer = await self._client.exchange(
                "POST", "/v1/completions", content, lambda _, now: came_s.append(now)
            )
        except OSError as error:
            seen.problems.append(str(error))
            return
        took_s = self._loop.time() - sent
        if answer.status == 429:
            seen.rejected_s.append(took_s)
        elif answer.status == 200:
            seen.ttft_s.append(came_s[0] - sent)
            seen.e2el_s.append(took_s)
        else:
            seen.problems.append(f"{answer.status} {answer.body[:200]!r}")

    def _memory(self) -> dict[str, int]:
        return {role: usage.anonymous_bytes for role, usage in self._served.usage().items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many of a hundred do not exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def _row(values: Sequence[float]) -> str:
    if not values:
        return "none"
    cells = (f"p{p} {percentile(values, p) * 1e3:7.0f} ms" for p in (50, 95, 99))
    return "  ".join(cells)


async def measure(served: Served, args: argparse.Namespace) -> Figures:
    places = args.running + args.queued
    return await Overload(served, places, Random(args.seed)).run(args.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=30, help="of each load (%(default)s)")
    parser.add_argument("--running", type=int, default=16, help="max_num_seqs (%(default)s)")
    parser.add_argument("--queued", type=int, default=16, help="max_num_queued_reqs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the load (%(default)s)")
    parser.add_argument(
        "--lenience",
        type=float,
        default=1,
        help="what the limits are multiplied with, on a machine with other work (%(default)s)",
    )
    parser.add_argument("options", nargs="*", help="further ones of headway serve, after --")
    args = parser.parse_args(argv)
    limited = ("--max-num-seqs", str(args.running), "--max-num-queued-reqs", str(args.queued))
    with serving(*limited, "--num-kv-blocks", "512", *args.options) as served:
        found = asyncio.run(measure(served, args))
    print("\n".join(found.lines()))
    problems = found.problems(Limits().times(args.lenience))
    for problem in problems[:20]:
        print("PROBLEM:", problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
