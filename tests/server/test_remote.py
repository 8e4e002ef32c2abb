"""The engine's process as the server's event loop sees it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.clock import MonotonicClock
from headway.config import EngineArgs
from headway.core.params import SamplingParams
from headway.engine.async_engine import AsyncEngine
from headway.engine.exactness import Exactness
from headway.engine.outputs import NewRequest, OutputDelta, fan_out
from headway.errors import (
    EngineDead,
    InvalidConfig,
    InvalidRequest,
    QueueFull,
    RequestTooLarge,
)
from headway.server.generation import ServedEngine, Stream
from headway.server.process.launch import EngineProcess
from headway.server.process.link import EngineLink
from headway.server.process.messages import (
    CheckRoom,
    Done,
    Ended,
    Heartbeat,
    Ready,
    Stepped,
    pack,
)
from headway.server.process.remote import EngineObservers, RemoteEngine
from headway.server.process.watchdog import LOADING_SILENCE_S, SILENCE_S
from headway.server.watch.stats import CacheInfo, StepStats
from server.tiny_child import FACTORY, HANG
from server.tiny_core import ALPHABET, MAX_MODEL_LEN, tiny_core, tiny_executor
from virtual_loop import run_virtually
from waiting import IN_TIME_S

READY = Ready(100, Exactness(False, "not probed"), CacheInfo(16, 10, 1000, "int8", True), "Tiny")


def greedy(name: str, length: int = 20, **params: object) -> NewRequest:
    options = {"temperature": 0.0, "max_tokens": 8} | params
    return NewRequest(name, [i % 50 for i in range(length)], SamplingParams(**options))


class Seen:
    def __init__(self) -> None:
        self.ready: list[Ready] = []
        self.stats: list[StepStats] = []

    @property
    def observers(self) -> EngineObservers:
        return EngineObservers(started=self.ready.append, stats=self.stats.append)


@asynccontextmanager
async def started(
    seen: Seen | None = None, *, step_timeout_s: float = 30.0, **args: object
) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(EngineProcess(FACTORY), step_timeout_s=step_timeout_s)
    try:
        ready = await engine.start(EngineArgs(**args), (seen or Seen()).observers)
        assert ready.max_model_len == MAX_MODEL_LEN
        yield engine
    finally:
        await engine.stop()


async def rest(stream: Stream) -> list[OutputDelta]:
    return [delta async for delta in stream]


async def answers(engine: ServedEngine) -> list[list[OutputDelta]]:
    new = [
        greedy("greedy"),
        greedy("logprobs", 40, logprobs=2, prompt_logprobs=1),
        greedy("stop", 30, stop=[ALPHABET[5]], max_tokens=60),
        NewRequest("n", [5, 6], SamplingParams(n=3, seed=7, max_tokens=4)),
    ]
    streams = await engine.add(fan_out(new))
    return [await rest(stream) for stream in streams]


async def refusal(asked: Awaitable[object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011  the test says which
        await asked
    return raised.value


def test_it_answers_as_the_engine_in_this_process_does_and_tells_of_every_step() -> None:
    async def here() -> list[list[OutputDelta]]:
        engine = AsyncEngine(tiny_core(tiny_executor()))
        engine.start()
        try:
            return await answers(engine)
        finally:
            engine.stop()

    async def there(seen: Seen) -> list[list[OutputDelta]]:
        async with started(seen) as engine:
            return await answers(engine)

    seen = Seen()
    expected = asyncio.run(here())
    assert asyncio.run(there(seen)) == expected
    assert [each.cache.num_blocks for each in seen.ready] == [64]
    output = sum(each.work.num_output_tokens for each in seen.stats if each.work is not None)
    assert output == sum(len(delta.token_ids) for deltas in expected for delta in deltas)
    assert {record.request_id for each in seen.stats for record in each.ended} == {
        *("greedy", "logprobs", "stop", "n-0", "n-1", "n-2")
    }


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """While there is this file, the engine of the model `slow:PATH` is slow, or loads on."""
    return tmp_path / "slow"


def test_what_the_engine_refuses_is_refused_here_with_all_it_says(slow: Path) -> None:
    async def check() -> None:
        model = f"slow:{slow}"
        async with started(max_num_queued_reqs=2, max_num_seqs=1, model=model) as engine:
            error = await refusal(engine.add([greedy("long", MAX_MODEL_LEN)]))
            assert isinstance(error, RequestTooLarge)
            assert error.field == "prompt"
            error = await refusal(engine.add([NewRequest("odd", [61], SamplingParams())]))
            assert isinstance(error, InvalidRequest)
            error = await refusal(engine.add([NewRequest("huge", [2**70], SamplingParams())]))
            assert isinstance(error, InvalidRequest)
            assert error.field == "prompt"
            error = await refusal(engine.add([greedy("many", top_k=2**70)]))
            assert isinstance(error, InvalidRequest)
            assert error.field == "top_k"
            await engine.check_room()
            slow.touch()
            streams = [(await engine.add([greedy(f"r{i}", max_tokens=50)]))[0] for i in range(2)]
            assert (await anext(streams[0])).token_ids
            error = await refusal(engine.add([greedy("r0")]))
            assert isinstance(error, InvalidRequest)
            streams += await engine.add([greedy("r2")])
            for asked in (engine.check_room(), engine.add([greedy("r3")])):
                error = await refusal(asked)
                assert isinstance(error, QueueFull)
                assert "max_num_queued_reqs" in str(error)
            slow.unlink()
            # None of them has left anything behind, also not an id that is in use.
            for stream in streams:
                stream.abort()
            for name in ("long", "odd", "huge", "many", "r3"):
                (stream,) = await engine.add([greedy(name)])
                assert len(await rest(stream)) == 8

    asyncio.run(check())


def test_an_add_that_is_cancelled_half_way_leaves_nothing_running(slow: Path) -> None:
    async def check(seen: Seen) -> None:
        async with started(seen, model=f"slow:{slow}") as engine:
            slow.touch()
            adding = asyncio.create_task(engine.add([greedy("gone", max_tokens=100)]))
            await asyncio.sleep(0)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            (stream,) = await engine.add([greedy("next")])
            slow.unlink()
            assert len(await rest(stream)) == 8
        reasons = {record.request_id: record for each in seen.stats for record in each.ended}
        assert reasons["gone"].finish_reason == "abort"
        assert seen.stats[-1].state.blocks_used == 0

    asyncio.run(check(Seen()))


def test_a_slow_step_that_lives_is_not_hung() -> None:
    async def check() -> None:
        async with started(model="slow", step_timeout_s=0.05) as engine:
            (stream,) = await engine.add([greedy("slow", max_tokens=3)])
            assert len(await rest(stream)) == 3
            assert engine.is_alive

    asyncio.run(check())


def test_a_lost_engine_fails_what_is_open_and_refuses_what_comes() -> None:
    async def check() -> None:
        async with started(step_timeout_s=1.0) as engine:
            (first,) = await engine.add([greedy("first", max_tokens=1)])
            await rest(first)
            hang = NewRequest("hang", [ALPHABET.index(HANG)], SamplingParams())
            (stream,) = await engine.add([hang])
            for asked in (rest(stream), engine.check_room(), engine.add([greedy("next")])):
                assert isinstance(await refusal(asked), EngineDead)
            assert not engine.is_alive
            assert "a step of the engine has taken" in str(await engine.dead())

    asyncio.run(check())


@pytest.mark.parametrize(
    ("factory", "model", "error", "words"),
    [
        (FACTORY, "bad", InvalidConfig, "max_model_len: there is no room"),
        (FACTORY, "dies", EngineDead, "the engine cannot start: RuntimeError: no"),
        ("server.tiny_child:nothing", None, EngineDead, "AttributeError"),
    ],
)
def test_an_engine_that_cannot_start_says_why(
    factory: str, model: str | None, error: type[Exception], words: str
) -> None:
    async def check() -> None:
        engine = RemoteEngine(EngineProcess(factory), step_timeout_s=1.0)
        with pytest.raises(error, match=words):
            await engine.start(EngineArgs(model=model), EngineObservers())
        assert not engine.is_alive
        await engine.stop()

    asyncio.run(check())


def test_the_engine_logs_in_the_form_that_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        engine = RemoteEngine(EngineProcess(FACTORY, log_format="json"), step_timeout_s=1.0)
        with pytest.raises(EngineDead):
            await engine.start(EngineArgs(model="dies"), EngineObservers())
        await engine.stop()

    asyncio.run(check())
    [line] = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (line["level"], line["message"]) == ("ERROR", "the engine cannot start")
    assert "RuntimeError: no" in line["exception"]


def test_stopping_before_the_start_ends_the_process() -> None:
    async def check() -> None:
        engine = RemoteEngine(EngineProcess(FACTORY), step_timeout_s=1.0)
        await engine.stop()
        assert engine.pid is None

    asyncio.run(check())


def test_an_engine_that_is_stopped_while_it_loads_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.server.process.remote._EXIT_S", 2 * IN_TIME_S)

    async def check() -> None:
        engine = RemoteEngine(EngineProcess(FACTORY), step_timeout_s=1.0)
        loads = asyncio.Event()
        observers = EngineObservers(progress=lambda _line: loads.set())
        starting = asyncio.create_task(engine.start(EngineArgs(model="never"), observers))
        await loads.wait()
        starting.cancel()
        assert not engine.is_alive
        async with asyncio.timeout(IN_TIME_S):
            await engine.stop()

    asyncio.run(check())


class NoProcess:
    def kill(self) -> None:
        pass

    def dump(self) -> None:
        pass


@pytest.mark.parametrize("when", ["at once", "while it loads", "once it is ready"])
def test_an_engine_that_falls_silent_is_lost_at_every_stage(when: str) -> None:
    async def check() -> float:
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(now=loop.time)
        link = EngineLink(
            NoProcess(),  # type: ignore[arg-type]
            stepped=lambda _message: None,
            progress=lambda _line: None,
            clock=clock,
            step_timeout_s=1.0,
            gone=lambda: EngineDead("gone"),
        )
        ours, theirs = socket.socketpair()
        with theirs:
            await loop.create_connection(lambda: link, sock=ours)
            for _ in range(0 if when == "at once" else 9):
                await asyncio.sleep(50.0 if when == "while it loads" else 2.0)
                link.data_received(pack(Heartbeat(None, 0.0)))
                if when == "once it is ready" and not link.ready.done():
                    link.data_received(pack(READY))
            silent_from = loop.time()
            assert "not been heard of" in await link.lost
            took = loop.time() - silent_from
            assert link.is_up is False
            assert (link.ready.exception() is None) == (when == "once it is ready")
            await asyncio.sleep(1.0)  # until it is killed
        return took

    took = run_virtually(check())
    silence_s = SILENCE_S if when == "once it is ready" else LOADING_SILENCE_S
    assert silence_s < took < silence_s + 1.0


def test_what_an_engine_says_after_its_end_is_not_heeded() -> None:
    async def check() -> None:
        link = EngineLink(
            NoProcess(),  # type: ignore[arg-type]
            stepped=lambda _message: pytest.fail("it was lost"),
            progress=lambda _line: None,
            clock=MonotonicClock(),
            step_timeout_s=1.0,
            gone=lambda: EngineDead("gone"),
        )
        ours, theirs = socket.socketpair()
        with theirs:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: link, sock=ours
            )
            asked = link.ask(lambda ticket: CheckRoom(ticket, 1))
            late = (Ended("it fell over"), Done(0), Stepped([], []))
            link.data_received(b"".join(map(pack, late)))
            transport.abort()
        assert isinstance(asked.exception(), EngineDead)
        assert await link.lost == "it fell over"

    asyncio.run(check())
