"""One load against several ways to run a server, interleaved and repeated.

Every trial has a server of its own, fresh, so that none finds what another left in its cache. In
each round every variant has its turn, in an order that is drawn anew, so that a machine that
changes with time changes all of them alike.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from headway.bench.figures import Wanted
from headway.bench.http import HttpClient
from headway.bench.launching import Launch, launched
from headway.bench.polling import Gauges, counters, polled, read_metrics, risen
from headway.bench.serving import Load, Measured, Server, measure
from headway.errors import HeadwayError
from headway.workload import TrafficClass, Workload

__all__ = ["Sample", "Trial", "Variant", "measure_trials", "run_trials"]

_NUM_WARMUPS = 4
_WARM_UP_SEED = -1
_WARM_UP_INPUT, _WARM_UP_OUTPUT = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to run the server."""

    name: str
    """As reports show it: `baseline`, `max_num_seqs=64`."""
    options: tuple[str, ...] = ()
    """Of `headway serve`, as on its command line."""
    load: Load | None = None
    """Where it is not the one that all have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How the server was at one moment, by its `/metrics`."""

    at_s: float
    """Since the load began."""
    running: float
    waiting: float
    kv_usage: float
    """Share of the KV blocks that requests hold."""
    preemptions: float
    """Since the load began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One variant, measured once."""

    variant: str
    round: int
    """From 0. Trials of one round are compared with each other."""
    seed: int
    """Of the load: the same for all trials of a round."""
    result: Mapping[str, Any]
    """As `headway bench serve` saves it."""
    details: Mapping[str, Any]
    """By request, likewise, but the texts."""
    samples: Sequence[Sample]
    counters: Mapping[str, float] = field(default_factory=dict)
    """What each of the server's counters (`kv_cache_evictions_total`, …, without the namespace;
    summed over their labels, and by label as `request_success_total{finished_reason="stop"}`) rose
    by from before the load to after it."""
    model: str = ""
    """As the server names it; empty: kept by a version that did not tell."""


def _ignore(_said: object) -> None:
    """For what nobody wants to hear."""


def run_trials(
    variants: Sequence[Variant],
    load: Load,
    *,
    rounds: int,
    say: Callable[[str], None],
    seed: int = 0,
    launch: Launch = launched,
    on_round: Callable[[Sequence[Trial]], None] = _ignore,
) -> list[Trial]:
    """Starts a server for each trial, sends the load, and ends the server. Before any of them, each
    variant's server is started once, so that what does not start is known at once.

    Args:
        variants: of different names.
        load: what is sent; round r sends its workload, or the variant's, with seed `seed + r`.
            Their own `seeds` say nothing here; of `num_warmups`, where 0, there are a few.
        rounds: how often each variant is measured.
        say: is told of each trial as it begins and what it came to.
        seed: of the order within a round as well.
        launch: starts servers.
        on_round: is given the trials of each round that is whole, whatever becomes of the next.

    Returns them by round, in each in the order of `variants`.

    Must be called in the main thread. Raises HeadwayError where a server does not start, or all
    requests of a trial fail; its message has what the server said last. Raises KeyboardInterrupt
    for SIGINT, SIGTERM and SIGHUP, once the server has ended.
    """
    measuring = measure_trials(
        variants, load, rounds=rounds, say=say, seed=seed, launch=launch, on_round=on_round
    )
    try:
        return asyncio.run(_endable(measuring))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _endable(work: Coroutine[Any, Any, list[Trial]]) -> list[Trial]:
    """SIGTERM and SIGHUP end it as Ctrl-C does, so that no server is left behind."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await task


async def measure_trials(
    variants: Sequence[Variant],
    load: Load,
    *,
    rounds: int,
    say: Callable[[str], None],
    seed: int = 0,
    launch: Launch = launched,
    on_round: Callable[[Sequence[Trial]], None] = _ignore,
) -> list[Trial]:
    """The same in the caller's event loop, whose clock it goes by."""
    names = [variant.name for variant in variants]
    assert len(set(names)) == len(names), names
    start = _Starter(launch)
    await start.check(variants, load, say)
    order = Random(seed)
    trials: list[Trial] = []
    for index in range(rounds):
        of_round: dict[str, Trial] = {}
        for variant in order.sample(variants, len(variants)):
            number = len(trials) + len(of_round) + 1
            done = f"trial {number} of {rounds * len(variants)}"
            say(f"Round {index + 1} of {rounds}, {done}: {variant.name}")
            trial = await start.trial(variant, variant.load or load, index, seed + index)
            say(f"  {_summary(trial.result)}")
            of_round[variant.name] = trial
        whole = [of_round[name] for name in names]
        on_round(whole)
        trials += whole
    return trials


class _Starter:
    """Starts servers and measures them."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    async def check(
        self, variants: Sequence[Variant], load: Load, say: Callable[[str], None]
    ) -> None:
        """Raises HeadwayError that names the variant whose server does not start or answer."""
        checked: set[tuple[str, ...]] = set()
        for variant in variants:
            if variant.options in checked:
                continue
            checked.add(variant.options)
            say(f"Trying whether it starts: {variant.name}")
            try:
                async with self._launch(variant.options) as url:
                    await _warm_up(_server(url), variant.load or load)
            except HeadwayError as error:
                raise HeadwayError(f"{variant.name}: {error}") from None

    async def trial(self, variant: Variant, load: Load, index: int, seed: int) -> Trial:
        try:
            async with self._launch(variant.options) as url:
                return await _trial(url, variant.name, load, index, seed)
        except HeadwayError as error:
            raise HeadwayError(f"{variant.name}, round {index + 1}: {error}") from None


def _server(url: str) -> Server:
    return Server(
        base_url=url,
        kind="completions",
        endpoint="/v1/completions",
        extra_body={"ignore_eos": True},
    )


async def _warm_up(server: Server, load: Load) -> None:
    """What a server does for the first time takes longer. Short enough for any context, of tokens
    that the vocabulary has, and of a seed that no load has."""
    requests = TrafficClass(
        name="warm-up",
        num_prompts=load.num_warmups or _NUM_WARMUPS,
        input_len=_WARM_UP_INPUT,
        output_len=_WARM_UP_OUTPUT,
    )
    warming = Load(
        workload=Workload(classes=(requests,), token_ids=load.workload.token_ids),
        seeds=(_WARM_UP_SEED,),
        text=False,
        wanted=Wanted(metrics=(), percentiles=()),
    )
    await measure(server, warming, say=_ignore)


async def _trial(url: str, name: str, load: Load, index: int, seed: int) -> Trial:
    server = _server(url)
    await _warm_up(server, load)
    client = HttpClient(url, headers={})
    try:
        before = counters(await read_metrics(client))
        async with polled(client) as polls:
            sent = replace(load, seeds=(seed,), num_warmups=0)
            measured = await measure(server, sent, say=_ignore)
        rose = risen(before, counters(await read_metrics(client)))
    except OSError as error:
        raise HeadwayError(f"the server does not answer any more ({error})") from None
    finally:
        client.close()
    return Trial(
        variant=name,
        round=index,
        seed=seed,
        result=measured.result,
        details={key: value for key, value in measured.details.items() if key != "generated_texts"},
        samples=_samples(polls, measured, before.get("num_preemptions_total", 0.0)),
        counters=rose,
        model=measured.model,
    )


def _samples(polls: Sequence[Gauges], measured: Measured, preemptions: float) -> list[Sample]:
    """From the first request on."""
    start = min(measured.details["start_times"])
    return [
        Sample(
            at_s=poll.at_s - start,
            running=poll.values.get("num_requests_running", 0.0),
            waiting=poll.values.get("num_requests_waiting", 0.0),
            kv_usage=poll.values.get("kv_cache_usage_perc", 0.0),
            preemptions=poll.values.get("num_preemptions_total", preemptions) - preemptions,
        )
        for poll in polls
        if poll.at_s >= start
    ]


def _summary(result: Mapping[str, Any]) -> str:
    parts = [f"{result['output_throughput']:.1f} tok/s"]
    if (ttft := result.get("median_ttft_ms")) is not None:
        parts.append(f"median TTFT {ttft:.0f} ms")
    if result["failed"]:
        parts.append(f"{result['failed']} failed")
    return ", ".join(parts)
