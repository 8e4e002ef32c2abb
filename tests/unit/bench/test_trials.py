"""Trials against scripted servers, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from headway.bench.figures import Wanted
from headway.bench.polling import counters, risen
from headway.bench.serving import Load
from headway.bench.trials import Trial, Variant, measure_trials
from headway.errors import HeadwayError
from headway.workload import Constant, TrafficClass, Workload
from scripted_server import MODELS, Asked, Piece, Reply, ScriptedServer, completion
from virtual_loop import run_virtually

LOAD = Load(
    workload=Workload(
        classes=(
            TrafficClass(
                name="a", num_prompts=4, input_len=5, output_len=3, arrivals=Constant(1.0)
            ),
        )
    ),
    seeds=(99,),
    text=False,
    wanted=Wanted(metrics=("ttft",), percentiles=(99,)),
)

PAGE = """\
# HELP headway:num_requests_running Requests in the running batch
headway:num_requests_running{{engine="0",model_name="m"}} {running}
headway:num_requests_waiting{{engine="0",model_name="m"}} 3.0
headway:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5
headway:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}
headway:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {running}
headway:request_success_total{{engine="0",finished_reason="length",model_name="m"}} 1.0
"""


class Launcher:
    """Servers that are scripted, and what they were asked."""

    def __init__(self, answer: Callable[[Asked], Reply] | None = None) -> None:
        self._answer = answer
        self.started: list[tuple[str, ...]] = []
        self.asked: list[list[Asked]] = []
        self.num_running = 0

    @contextlib.asynccontextmanager
    async def __call__(self, options: Sequence[str]) -> AsyncIterator[str]:
        polls = 0

        def answer(asked: Asked) -> Reply:
            nonlocal polls
            if asked.path == "/metrics":
                polls += 1
                text = PAGE.format(running=float(polls), preemptions=10.0 + polls)
                return Reply((Piece(0, text.encode()),))
            if asked.path == "/v1/models":
                return MODELS
            if self._answer is not None:
                return self._answer(asked)
            return completion(0.3, [0.1, 0.2], prompt=len(asked.body["prompt"]))

        self.started.append(tuple(options))
        async with ScriptedServer(answer).serving() as server:
            self.asked.append(server.asked)
            self.num_running += 1
            assert self.num_running == 1, "two servers at once disturb each other"
            try:
                yield server.url
            finally:
                self.num_running -= 1


def measured(
    launcher: Launcher, variants: Sequence[Variant], *, rounds: int = 1, **options: object
) -> list[Trial]:
    said = options.pop("said", [])
    return run_virtually(
        measure_trials(variants, LOAD, rounds=rounds, say=said.append, launch=launcher, **options)
    )


A, B, C = (Variant(name=name, options=(f"--{name}",)) for name in "abc")


def prompts(asked: Sequence[Asked]) -> list[list[int]]:
    return [each.body["prompt"] for each in asked if each.body and len(each.body["prompt"]) == 5]


def test_every_variant_has_a_server_of_its_own_in_every_round_in_a_drawn_order() -> None:
    launcher = Launcher()
    trials = measured(launcher, (A, B, C), rounds=4, seed=1)
    tried, starts = launcher.started[:3], launcher.started[3:]
    rounds = [starts[index : index + 3] for index in range(0, 12, 3)]
    assert tried == [A.options, B.options, C.options]
    assert all(sorted(each) == [A.options, B.options, C.options] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    assert [(trial.round, trial.variant) for trial in trials] == [
        (index, name) for index in range(4) for name in "abc"
    ]
    again = Launcher()
    measured(again, (A, B, C), rounds=4, seed=1)
    assert again.started == launcher.started


def test_a_round_that_is_whole_is_handed_over_whatever_becomes_of_the_next() -> None:
    sent: list[Asked] = []

    def answer(asked: Asked) -> Reply:
        sent.append(asked)
        if len(prompts(sent)) > 2 * 4:
            return Reply(status=400, body={"error": {"message": "no more"}})
        return completion(0.3, [0.1, 0.2], prompt=len(asked.body["prompt"]))

    whole: list[Trial] = []
    with pytest.raises(HeadwayError, match=r"round 2: .*no more"):
        measured(Launcher(answer), (A, B), rounds=3, on_round=whole.extend)
    assert [(trial.round, trial.variant) for trial in whole] == [(0, "a"), (0, "b")]


def test_a_round_sends_all_variants_the_same_and_the_next_something_else() -> None:
    launcher = Launcher()
    trials = measured(launcher, (A, B), rounds=2, seed=7)
    sent = [prompts(asked) for asked in launcher.asked[2:]]
    assert all(len(each) == 4 for each in sent)
    assert sent[0] == sent[1] != sent[2] == sent[3]
    assert [trial.seed for trial in trials] == [7, 7, 8, 8]


def test_the_warm_up_is_in_no_figure() -> None:
    launcher = Launcher()
    (trial,) = measured(launcher, (A,))
    bodies = [each.body for each in launcher.asked[1] if each.body]
    warm, load = bodies[:4], bodies[4:]
    assert all(len(body["prompt"]) == 8 for body in warm)
    assert len(load) == trial.result["completed"] == 4
    assert len(trial.details["ttfts"]) == 4
    assert trial.result["median_ttft_ms"] == pytest.approx(300)
    assert trial.model == "the-model"


def test_the_warm_up_is_of_tokens_that_the_load_may_have_too() -> None:
    workload = msgspec.structs.replace(LOAD.workload, token_ids=(3, 20))
    launcher = Launcher()
    measured(launcher, (Variant(name="a", load=replace(LOAD, workload=workload)),))
    bodies = [each.body for asked in launcher.asked for each in asked if each.body]
    assert len(bodies) == 4 + 4 + 4
    assert all(3 <= token < 20 for body in bodies for token in body["prompt"])
    assert all(len(body["prompt"]) + body["max_tokens"] <= 12 for body in bodies)


def test_a_variant_may_have_a_load_of_its_own() -> None:
    own = LOAD.workload.classes[0]
    workload = Workload(
        classes=(TrafficClass(name="b", num_prompts=2, input_len=own.input_len, output_len=3),)
    )
    load = Load(workload=workload, seeds=(0,), text=False, wanted=LOAD.wanted)
    launcher = Launcher()
    trials = measured(launcher, (A, Variant(name="b", load=load)))
    assert [trial.result["completed"] for trial in trials] == [4, 2]


def test_samples_are_polled_four_times_a_second_from_the_first_request_on_and_at_the_end() -> None:
    (trial,) = measured(Launcher(), (A,))
    times = [sample.at_s for sample in trial.samples]
    assert times[0] == pytest.approx(0, abs=0.05)
    assert times[-1] == pytest.approx(3.6, abs=0.05)  # the load takes 3.6 s
    assert len(times) == 16
    assert [sample.preemptions for sample in trial.samples[:3]] == [1, 2, 3]
    first = trial.samples[0]
    assert (first.running, first.waiting, first.kv_usage) == (2, 3, 0.5)


def test_counters_are_what_rose_during_the_load_by_label_too() -> None:
    (trial,) = measured(Launcher(), (A,))
    assert trial.counters == {
        "num_preemptions_total": 17,
        "request_success_total": 17,
        'request_success_total{finished_reason="stop"}': 17,
        'request_success_total{finished_reason="length"}': 0,
    }


def test_a_counter_that_appears_meanwhile_began_at_nothing() -> None:
    before = counters('x:a_total{engine="0"} 2\n')
    after = counters('x:a_total{engine="0"} 5\nx:b_total{engine="0",model_name="m"} 4\n')
    assert risen(before, after) == {"a_total": 3, "b_total": 4}


def test_a_server_that_does_not_start_is_known_before_anything_is_measured() -> None:
    launcher = Launcher()

    @contextlib.asynccontextmanager
    async def launch(options: Sequence[str]) -> AsyncIterator[str]:
        if "--c" in options:
            raise HeadwayError("the server did not start\n  --c: no")
        async with launcher(options) as url:
            yield url

    with pytest.raises(HeadwayError, match=r"c: the server did not start\n  --c: no"):
        measured(launch, (A, B, C), rounds=9)
    assert launcher.started == [A.options, B.options]


def test_a_trial_whose_requests_all_fail_names_variant_and_round() -> None:
    def answer(asked: Asked) -> Reply:
        if len(asked.body["prompt"]) == 8:
            return completion(0.1, [0.1], prompt=8)
        return Reply(status=400, body={"error": {"message": "too long"}})

    launcher = Launcher(answer)
    with pytest.raises(HeadwayError, match=r"a, round 1: all 4 requests failed.*too long"):
        measured(launcher, (A,))
    assert launcher.num_running == 0


def test_a_cancelled_measurement_ends_its_server() -> None:
    launcher = Launcher()

    async def work() -> None:
        said = asyncio.Event()
        task = asyncio.create_task(
            measure_trials(
                (A,),
                LOAD,
                rounds=1,
                say=lambda line: said.set() if line.startswith("Round") else None,
                launch=launcher,
            )
        )
        await said.wait()
        await asyncio.sleep(2)
        assert launcher.num_running == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(work())
    assert launcher.num_running == 0


def test_what_is_said_names_the_trial_and_what_it_came_to() -> None:
    said: list[str] = []
    measured(Launcher(), (A,), said=said)
    assert said == [
        "Trying whether it starts: a",
        "Round 1 of 1, trial 1 of 1: a",
        "  3.3 tok/s, median TTFT 300 ms",
    ]
