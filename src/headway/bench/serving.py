"""`headway bench serve`: load for any server with OpenAI's API, and what its users would see.

A process of its own, that needs no PyTorch: it must take as little as it can of the machine that
it may share with the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tqdm import tqdm

from headway.bench.figures import Wanted, details, figures
from headway.bench.http import HttpClient
from headway.bench.load import Outcome, Run, run_load
from headway.bench.openai import Api, ApiKind, Target, first_model
from headway.bench.prompts import (
    WORDS,
    Form,
    check_lengths,
    lengthened,
    measure_frame,
    prompt_of,
)
from headway.bench.saturation import saturation
from headway.errors import HeadwayError
from headway.workload import Trace, WorkItem, Workload

__all__ = ["Load", "Measured", "Server", "measure_server"]

_ASK_AGAIN_S = 1.0
_MADE_BEFORE_BYTES = 64 << 20
"""Of bodies. A prompt of 2,000 tokens takes a tenth of a millisecond to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where and how to ask."""

    base_url: str
    kind: ApiKind
    endpoint: str
    model: str | None = None
    """None: the first that the server lists."""
    headers: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = False
    """Take any TLS certificate."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ready_check_timeout_s: float = 0.0
    """Wait so long at most for the server to answer; 0: it must at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send, and what to report of it."""

    workload: Workload
    seeds: tuple[int, ...]
    """The workload is sent once with each, one after the other."""
    text: bool
    """Prompts are text and not token ids."""
    max_concurrency: int | None = None
    num_warmups: int = 0
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it."""

    model: str
    result: dict[str, Any]
    """`figures` and `saturation` of all, with `classes`, the figures of each, where there are
    several, `traces`, what was made of each, where there are any, and `frame_tokens`, those of
    each prompt that are the server's own (a chat's template)."""
    details: dict[str, Any]


def measure_server(
    server: Server, load: Load, *, say: Callable[[str], None], progress: bool = False
) -> Measured:
    """Sends the load and measures.

    Raises InvalidConfig for an option, HeadwayError where the server cannot be reached, a warm-up
    fails or all requests do.
    """
    return asyncio.run(measure(server, load, say=say, progress=progress))


async def measure(
    server: Server, load: Load, *, say: Callable[[str], None], progress: bool = False
) -> Measured:
    """The same in the caller's event loop, whose clock it goes by."""
    client = HttpClient(server.base_url, headers=server.headers, insecure=server.insecure)
    try:
        model = await _model(client, server)
        form: Form = "tokens" if not load.text else "chat" if server.kind == "chat" else "text"
        # Only a conversation in token ids goes on from them; a server may not know the field.
        ids = form == "tokens" and any(kind.turns for kind in load.workload.classes)
        api = Api(server.kind, server.endpoint, model, server.extra_body, return_token_ids=ids)
        target = Target(client, api)
        frame = await measure_frame(target) if load.text else 0
        sender = _Sender(target, load, form, frame)
        # Before sending: a file that is changed meanwhile must not cost the measurement.
        traces = [_replayed(trace, load, frame) for trace in load.workload.traces]
        works = [msgspec.structs.replace(load.workload, seed=seed) for seed in load.seeds]
        sent = [(work, sender.items(work)) for work in works]
        for _, items in sent:
            check_lengths(items, frame, free={trace["name"] for trace in traces})
        await _warm_up(sender, load, say)
        runs = []
        for work, items in sent:
            say(f"Sending {len(items):,} requests (seed {work.seed})")
            runs.append(await sender.run(work, items, progress=progress))
    except OSError as error:
        raise HeadwayError(
            f"no server answers at {server.base_url} ({error}); start one with headway serve, or "
            "say with --base-url, or --host and --port, where it is"
        ) from None
    finally:
        client.close()
    _check_any(runs)
    result = _result(runs, load) | {"frame_tokens": frame}
    if traces:
        result["traces"] = traces
    return Measured(model, result, details(runs))


class _Sender:
    """Makes the bodies of requests, and sends them."""

    def __init__(self, target: Target, load: Load, form: Form, frame: int) -> None:
        self._target = target
        self._load = load
        self._form: Form = form
        self._frame = frame
        self._more = {kind.name: kind.body for kind in load.workload.classes}

    def items(self, workload: Workload) -> list[WorkItem]:
        return workload.items(_ids(self._load))

    async def run(
        self, workload: Workload, items: Sequence[WorkItem], *, progress: bool = False
    ) -> Run:
        """Sends `items` of the workload; those that are shorter than any text, as the shortest.
        Bodies are made before the clock starts, as many as memory should hold; the others, and
        those of turns that follow an answer, as they are sent.
        """
        items = [lengthened(item, self._frame) for item in items]
        bodies = self._first_bodies(items)
        loop = asyncio.get_running_loop()

        async def send(outcome: Outcome) -> None:
            body = bodies.pop(id(outcome.item), None) or self._body(outcome)
            await self._target.send(outcome, body, loop.time())

        with tqdm(total=len(items), unit="req", disable=not progress, leave=False) as bar:
            return await run_load(
                workload,
                items,
                send,
                max_concurrency=self._load.max_concurrency,
                progress=bar.update,
            )

    def _first_bodies(self, items: Sequence[WorkItem]) -> dict[int, bytes]:
        bodies: dict[int, bytes] = {}
        size = 0
        for item in items:
            if item.follows is None and size < _MADE_BEFORE_BYTES:
                body = bodies[id(item)] = self._body(Outcome(item, item.arrival_s))
                size += len(body)
        return bodies

    def _body(self, outcome: Outcome) -> bytes:
        prompt = prompt_of(outcome, self._form, self._frame)
        more = self._more.get(outcome.item.class_name, {})
        return self._target.api.body(prompt, outcome.item.output_len, stream=True, more=more)


def _ids(load: Load) -> tuple[int, int] | None:
    """What prompts are made of, where not of the workload's own."""
    return (0, len(WORDS)) if load.text else None


async def _model(client: HttpClient, server: Server) -> str:
    """Its name, once the server answers."""
    loop = asyncio.get_running_loop()
    until = loop.time() + server.ready_check_timeout_s
    while True:
        if server.model is not None and not server.ready_check_timeout_s:
            return server.model
        try:
            listed = await first_model(client)
            return server.model or listed
        except (OSError, HeadwayError):
            if loop.time() + _ASK_AGAIN_S > until:
                raise
            await asyncio.sleep(_ASK_AGAIN_S)


async def _warm_up(sender: _Sender, load: Load, say: Callable[[str], None]) -> None:
    """With requests of the same kind and of a seed of their own, so that the server has not seen
    those that count."""
    if not load.num_warmups:
        return
    say(f"Warming up with {load.num_warmups} requests")
    workload = msgspec.structs.replace(load.workload, seed=-1 - load.seeds[0])
    firsts = [item for item in sender.items(workload) if item.follows is None]
    run = await sender.run(workload, firsts[: load.num_warmups])
    for outcome in run.outcomes:
        if outcome.error is not None:
            raise HeadwayError(f"a warm-up request failed: {outcome.error}")


def _check_any(runs: Sequence[Run]) -> None:
    errors = [outcome.error for run in runs for outcome in run.outcomes]
    if all(error is not None for error in errors):
        raise HeadwayError(f"all {len(errors)} requests failed; the first: {errors[0]}")


def _result(runs: Sequence[Run], load: Load) -> dict[str, Any]:
    result = figures(runs, load.wanted) | saturation(runs, load.workload)
    names = [source.name for source in load.workload.sources]
    if len(names) > 1:
        result["classes"] = {name: figures(runs, load.wanted, class_name=name) for name in names}
    return result


def _replayed(trace: Trace, load: Load, frame: int) -> dict[str, Any]:
    """What was made of it; the seed changes none of this."""
    replay = trace.replay(load.seeds[0], range(*(_ids(load) or load.workload.token_ids)))
    return {
        "name": trace.name,
        "path": trace.path,
        "requests": len(replay.items),
        "rate_scale": trace.rate_scale,
        "length_scale": trace.length_scale,
        "cut_inputs": replay.cut_inputs,
        "cut_outputs": replay.cut_outputs,
        "lengthened_inputs": sum(item.input_len <= frame for item in replay.items),
        "shares_prefixes": replay.shares_prefixes,
    }
