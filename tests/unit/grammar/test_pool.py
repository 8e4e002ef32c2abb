from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakSet

import pytest

from headway.core.structured import Grammar, StructuredOutputs
from headway.errors import InvalidRequest, QueueFull
from headway.grammar.compiler import GrammarCompiler
from headway.grammar.pool import GrammarPool
from tiny_grammar import tiny_tokenizer
from waiting import in_time

LONG_S = 60.0
"""Nobody waits for so long."""


class Compiler:
    """Compiles what `open` holds, by its regex; what is not there waits."""

    def __init__(self, *names: str) -> None:
        self.began: list[str] = []
        self.gates = {name: threading.Event() for name in names}

    def __call__(self, asked: StructuredOutputs) -> Any:
        name = asked.regex
        assert name is not None
        self.began.append(name)
        if name in self.gates:
            assert self.gates[name].wait(LONG_S)
        if name.startswith("wrong"):
            raise asked.wrong("is wrong")
        return f"grammar of {name}"


class Timers(list["Timers.One"]):
    """In the place of `threading.Timer`: each ends when the test says so."""

    class One:
        daemon = False

        def __init__(self, after_s: float, do: Callable[..., None], args: tuple[Any, ...]) -> None:
            self.after_s = after_s
            self.end = partial(do, *args)

        def start(self) -> None:
            pass

        def cancel(self) -> None:
            pass

    def __call__(self, *args: Any) -> Timers.One:
        self.append(self.One(*args))
        return self[-1]


def regex(name: str) -> StructuredOutputs:
    return StructuredOutputs(regex=name)


def of(future: Future[Grammar]) -> Any:
    return future.result(LONG_S)


def test_what_is_asked_for_twice_is_compiled_once_also_while_it_is() -> None:
    compiler = Compiler("a")
    pool = GrammarPool(compiler, deadline_s=LONG_S)
    first, second = pool.compile(regex("a")), pool.compile(regex("a"))
    compiler.gates["a"].set()
    assert of(first) == of(second) == of(pool.compile(regex("a"))) == "grammar of a"
    assert compiler.began == ["a"]


def test_the_last_ones_are_kept() -> None:
    compiler = Compiler()
    pool = GrammarPool(compiler, deadline_s=LONG_S)
    for index in range(33):
        of(pool.compile(regex(f"{index}")))
        of(pool.compile(regex("0")))
    assert compiler.began == [f"{index}" for index in range(33)]
    of(pool.compile(regex("32")))
    of(pool.compile(regex("1")))
    assert compiler.began[-1] == "1"
    assert len(compiler.began) == 34


def test_what_is_wrong_is_said_and_not_kept() -> None:
    compiler = Compiler()
    pool = GrammarPool(compiler, deadline_s=LONG_S)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"structured_outputs\.regex: is wrong"):
            of(pool.compile(regex("wrong")))
    assert compiler.began == ["wrong", "wrong"]


def test_what_takes_too_long_is_refused_and_what_only_waited_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.grammar.pool.Timer", timers := Timers())
    compiler = Compiler("a", "b")
    pool = GrammarPool(compiler, deadline_s=0.05)
    slow, also_slow, waits = (pool.compile(regex(name)) for name in "abc")
    assert in_time(lambda: len(compiler.began) == 2)
    assert [timer.after_s for timer in timers] == [0.05] * 3
    for timer in timers:
        timer.end()
    with pytest.raises(InvalidRequest, match=r"regex: takes longer than 0\.05 s to compile"):
        of(slow)
    with pytest.raises(InvalidRequest, match=r"takes longer"):
        of(also_slow)
    with pytest.raises(QueueFull, match="too many grammars") as raised:
        of(waits)
    assert raised.value.retry_after_s == 0.05
    for gate in compiler.gates.values():
        gate.set()
    pool = GrammarPool(compiler, deadline_s=LONG_S)
    assert of(pool.compile(regex("a"))) == "grammar of a"


def test_only_so_many_wait() -> None:
    compiler = Compiler("a", "b")
    pool = GrammarPool(compiler, deadline_s=LONG_S)
    waiting = [pool.compile(regex(name)) for name in ("a", "b", *map(str, range(64)))]
    with pytest.raises(QueueFull):
        of(pool.compile(regex("one more")))
    for gate in compiler.gates.values():
        gate.set()
    assert of(waiting[-1]) == "grammar of 63"
    assert of(pool.compile(regex("one more"))) == "grammar of one more"


def test_who_shares_a_future_cannot_cancel_it_for_others() -> None:
    compiler = Compiler("a")
    pool = GrammarPool(compiler, deadline_s=LONG_S)
    whole = pool.compile_all({regex("a"), regex("b")})
    assert whole.cancel()
    alone = pool.compile(regex("a"))
    assert not alone.cancel()
    compiler.gates["a"].set()
    assert of(alone) == "grammar of a"


def test_all_come_together_or_the_error_of_one() -> None:
    pool = GrammarPool(Compiler(), deadline_s=LONG_S)
    both = [regex("a"), regex("b")]
    assert pool.compile_all(both).result(LONG_S) == {
        both[0]: "grammar of a",
        both[1]: "grammar of b",
    }
    with pytest.raises(InvalidRequest):
        pool.compile_all([*both, regex("wrong")]).result(LONG_S)


@pytest.mark.parametrize("kind", ["oneOf", "allOf"])
def test_a_schema_of_long_chains_of_references_does_not_overflow_the_stack(kind: str) -> None:
    links = {f"{i}": {kind: [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(21_000)}
    chain = {"$ref": "#/$defs/0", "$defs": {**links, "21000": {"type": "null"}}}
    pool = GrammarPool(GrammarCompiler(tiny_tokenizer()).compile, deadline_s=LONG_S)
    with pytest.raises(InvalidRequest, match="too large"):
        of(pool.compile(StructuredOutputs(json=json.dumps(chain, separators=(",", ":")))))


def test_threads_that_begin_later_have_stacks_of_the_usual_size() -> None:
    before = threading.stack_size()
    of(GrammarPool(Compiler()).compile(regex("a")))
    assert threading.stack_size() == before


def test_what_is_no_longer_kept_goes_without_the_collector() -> None:
    class Compiled:
        pass

    alive = WeakSet[Compiled]()

    def compile_(_asked: StructuredOutputs) -> Any:
        alive.add(compiled := Compiled())
        return compiled

    pool = GrammarPool(compile_, deadline_s=LONG_S)
    gc.disable()
    try:
        for number in range(100):
            pool.compile_all({regex(f"{number} a"), regex(f"{number} b")}).result(LONG_S)
        assert in_time(lambda: len(alive) <= 34)  # 32 are kept; the threads may hold the last two
    finally:
        gc.enable()
        pool.close()
