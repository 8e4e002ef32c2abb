"""Whole engines over tiny models whose outputs are held to something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from engines import SMALL, TestEngine
from headway.core.params import SamplingParams
from headway.core.plan import ChunkError, Executor, StepPlan, StepResult
from headway.core.structured import StructuredOutputs
from headway.engine.outputs import NewRequest, fan_out
from headway.engine.threaded import ThreadedExecutor
from headway.errors import InvalidRequest
from headway.grammar.pool import GrammarPool
from tiny import TINY
from tiny_executors import one_thread, pytorch, reference
from tiny_grammar import END, as_tokens, compiler, tiny_tokenizer

POOL = GrammarPool(compiler().compile, deadline_s=60.0)
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}
WORD = r"(ab|ba){2,5}c"
CHOICES = ["true", "abab", "12,3"]
HELD: dict[str, dict[str, Any]] = {
    "list": {"json": LIST, "disable_any_whitespace": True},
    "word": {"regex": WORD},
    "choice": {"choice": CHOICES},
    "lark": {"grammar": 'start: NUMBER ("," NUMBER)*\nNUMBER: /[12]{3,6}/'},
}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 4}


def engine(executor: Executor | None = None, **options: Any) -> TestEngine:
    made = executor or reference(num_blocks=SMALL.num_kv_blocks)
    return TestEngine(
        made,
        vocab_size=TINY.vocab_size,
        tokenizer=tiny_tokenizer(),
        eos_token_ids=(END,),
        grammars=POOL,
        **options,
    )


def held(**asked: Any) -> dict[str, Any]:
    return {"structured_outputs": StructuredOutputs(**asked)}


def check(kind: str, text: str) -> None:
    match kind:
        case "list":
            value = json.loads(text)
            assert 2 <= len(value) <= 4
            assert all(isinstance(item, bool) for item in value)
        case "word":
            assert re.fullmatch(WORD, text)
        case "choice":
            assert text in CHOICES
        case _:
            assert re.fullmatch("[12]{3,6}(,[12]{3,6})*", text)


def requests() -> dict[str, dict[str, Any]]:
    """Several of each kind, greedy and sampled, and some that are held to nothing."""
    found: dict[str, dict[str, Any]] = {}
    for kind, asked in HELD.items():
        found[f"{kind} greedy"] = held(**asked)
        found[f"{kind} sampled"] = held(**asked) | SAMPLED
    found["lark penalised"] = held(**HELD["lark"]) | {"frequency_penalty": 1.0}
    found["free"] = {}
    found["free sampled"] = dict(SAMPLED)
    return {name: {"max_tokens": 24, **params} for name, params in found.items()}


PROMPT = {name: [1 + index, 7, 3 * index, 20, 9, index] for index, name in enumerate(requests())}


def outcomes(bench: TestEngine, names: list[str]) -> dict[str, tuple[list[int], str, str | None]]:
    for name in names:
        bench.add(name, PROMPT[name], **requests()[name])
    bench.run()
    return {name: (bench.tokens[name], bench.texts[name], bench.reasons[name]) for name in names}


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[int], str, str | None]]:
    """What each comes to by itself, by definition."""
    found: dict[str, tuple[list[int], str, str | None]] = {}
    for name in requests():
        found |= outcomes(engine(), [name])
    return found


def test_outputs_are_what_they_are_held_to_and_end_there(
    alone: dict[str, tuple[list[int], str, str | None]],
) -> None:
    for name, (tokens, text, reason) in alone.items():
        kind = name.split()[0]
        if reason == "stop" and kind != "free":
            assert tokens[-1] == END
            check(kind, text)
    ended = [name for name, (_, _, reason) in alone.items() if reason == "stop"]
    assert {name.split()[0] for name in ended} >= {"list", "word", "choice"}


@pytest.mark.parametrize("overlapped", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("make", [reference, pytorch])
def test_outputs_are_the_same_in_any_batch_chunk_and_after_any_preemption(
    make: Callable[..., Executor],
    overlapped: bool,
    alone: dict[str, tuple[list[int], str, str | None]],
) -> None:
    config = msgspec.structs.replace(SMALL, num_kv_blocks=18, max_num_batched_tokens=9)

    def made() -> Executor:
        return make(num_blocks=config.num_kv_blocks)

    executor = ThreadedExecutor(made) if overlapped else made()
    with one_thread():
        bench = engine(executor, config=config, async_scheduling=overlapped)
        together = outcomes(bench, list(requests()))
        bench.core.close()
    assert together == alone
    assert any(step.preemptions for step in bench.steps)


def test_what_is_cut_by_its_limit_ends_with_length() -> None:
    bench = engine()
    bench.add("cut", [1, 2], **held(json=LIST), max_tokens=3)
    bench.add("none", [1, 2], **held(json=LIST), max_tokens=0)
    bench.run()
    assert bench.reasons == {"cut": "length", "none": "length"}
    assert bench.texts["cut"].startswith("[")


def test_where_only_the_end_is_allowed_a_request_ends_whatever_else_it_says() -> None:
    bench = engine()
    whole = held(choice=["ab"])
    bench.add("ignoring", [1], **whole, ignore_eos=True)
    bench.add("min", [1], **whole, min_tokens=10)
    bench.add("longer", [1], **held(regex="[12]{1,6}"), ignore_eos=True)
    bench.add("min longer", [1], **held(regex="[12]{1,}"), min_tokens=5)
    bench.run()
    assert set(bench.reasons.values()) == {"stop"} or bench.reasons["min longer"] == "length"
    assert bench.texts["ignoring"] == bench.texts["min"] == "ab"
    assert len(bench.texts["longer"]) == 6  # an end that could come later is ignored
    assert len(bench.texts["min longer"]) >= 5


def test_what_contradicts_a_constraint_ends_its_own_request_and_says_so() -> None:
    class Words(type(tiny_tokenizer())):  # type: ignore[misc]
        def encode(self, text: str, *, add_special_tokens: bool = True, **_: Any) -> list[int]:
            return list(as_tokens(text))

    tokenizer = Words.__new__(Words)
    tokenizer.__dict__ = tiny_tokenizer().__dict__
    bench = engine()
    words = TestEngine(
        bench.executor,
        vocab_size=TINY.vocab_size,
        tokenizer=tokenizer,
        eos_token_ids=(END,),
        grammars=POOL,
    )
    words.add("banned", [1], **held(choice=["c"]), bad_words=["c"])
    words.add("fine", [1], **held(choice=["c"]))
    words.run()
    assert words.reasons == {"banned": "error", "fine": "stop"}
    assert words.last["banned"].error == ChunkError(
        "together leave no token that can be sampled", ("structured_outputs", "bad_words")
    )


def test_a_grammar_that_takes_too_much_ends_its_own_request_alone() -> None:
    wide = {"type": "object", "properties": {f"a{i}": {"type": "string"} for i in range(600)}}
    bench = engine()
    bench.add("wide", [1], **held(json=wide))
    bench.add("fine", [1], **held(choice=["ab"]))
    bench.add("free", [1])
    bench.run()
    assert bench.reasons == {"wide": "error", "fine": "stop", "free": "length"}
    error = bench.last["wide"].error
    assert error is not None
    assert error.fields == ("structured_outputs",)
    assert "items; max is" in error.message


class Unlucky:
    """Fails in some steps, after it has sampled."""

    def __init__(self, inner: Executor, fails: set[int]) -> None:
        self._inner, self._fails = inner, fails

    def submit(self, plan: StepPlan) -> Any:
        handle = self._inner.submit(plan)
        if plan.step in self._fails:
            raise RuntimeError("out of luck")
        return handle

    def collect(self, handle: Any) -> StepResult:
        return self._inner.collect(handle)

    def block_copy_s(self) -> float:
        return self._inner.block_copy_s()


def test_a_step_that_fails_leaves_no_trace_in_what_is_allowed(
    alone: dict[str, tuple[list[int], str, str | None]],
) -> None:
    names = ["list sampled", "word sampled", "lark greedy"]
    executor = Unlucky(reference(num_blocks=SMALL.num_kv_blocks), {3, 9, 15})
    found = outcomes(engine(executor), names)
    assert found == {name: alone[name] for name in names}


def test_completions_of_one_prompt_share_the_grammar_and_not_the_place_in_it() -> None:
    bench = engine()
    params = SamplingParams(n=3, max_tokens=24, seed=2, **held(regex=WORD))
    new = fan_out([NewRequest("r", [1, 2, 3], params)])
    grammars = bench.core.compile(new).result()
    assert len(grammars) == 1
    bench.core.add(new, grammars)
    bench.tokens |= {item.request_id: [] for item in new}
    bench.texts |= {item.request_id: "" for item in new}
    bench.run()
    texts = list(bench.texts.values())
    assert all(re.fullmatch(WORD, text) for text in texts)
    assert len(set(texts)) > 1


def test_what_cannot_be_compiled_is_refused_before_anything_is_run() -> None:
    bench = engine()
    with pytest.raises(InvalidRequest, match=r"^structured_outputs\.regex: invalid regex"):
        bench.add("wrong", [1], **held(regex="("))
    assert not bench.core.has_work


def test_without_a_compiler_it_is_refused_by_name() -> None:
    bench = TestEngine(reference(num_blocks=SMALL.num_kv_blocks), vocab_size=TINY.vocab_size)
    params = SamplingParams(**held(regex="a"))
    compiling: Future[Any] = bench.core.compile([NewRequest("r", [1], params)])
    with pytest.raises(InvalidRequest, match=r"^structured_outputs: are not supported"):
        compiling.result()
    assert bench.core.compile([NewRequest("r", [1], SamplingParams())]).result() == {}
