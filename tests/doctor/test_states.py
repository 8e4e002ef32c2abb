"""A doctor beside `headway serve` with the default model, driven into some of the states.

Not part of `make test`, for it takes two minutes: `.ci/run` does it, and
`make test ARGS=tests/doctor`. Loads are such that a machine's speed does not change the state.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.doctor.finding import Severity
from headway.workload import ClosedLoop, Constant, SharedPrefix, TrafficClass, Workload
from provoked import State, found, provoke, shown
from soak.served import serving

FOR_S, EVERY_S = 15.0, 0.5
ONE_THREAD = {"num_threads": 1}
"""Two that wait for each other would crawl on a busy machine."""


def load(*classes: TrafficClass) -> Workload:
    return Workload(classes=classes)


STATES = {
    "healthy": State(
        args=ONE_THREAD | {"num_kv_blocks": 1024},
        workload=load(
            TrafficClass(
                name="chat",
                num_prompts=60,
                input_len=112,
                output_len=16,
                arrivals=Constant(1.5),
                shared_prefix=SharedPrefix(96),
            )
        ),
    ),
    "preempting": State(
        args=ONE_THREAD | {"num_kv_blocks": 24, "max_num_seqs": 32},
        workload=load(
            TrafficClass(
                name="chat",
                num_prompts=2000,
                input_len=4,
                output_len=(30, 90),
                arrivals=ClosedLoop(20),
            )
        ),
        begun=("num_preemptions", 1),
        must={"preemptions": "more is running than the KV cache can hold"},
        may=frozenset({"kv_pressure", "queue_time", "itl_stalls"}),
    ),
    "growing": State(
        args=ONE_THREAD | {"num_kv_blocks": 4096},
        workload=load(
            TrafficClass(
                name="more than anybody computes",
                num_prompts=1000,
                input_len=1000,
                output_len=2,
                arrivals=Constant(0.1),
            )
        ),
        must={"waiting_growing": "what holds up the first is 'budget'"},
        may=frozenset({"queue_time"}),
    ),
    "stalling": State(
        args=ONE_THREAD | {"num_kv_blocks": 1024, "max_num_batched_tokens": 2048},
        workload=load(
            TrafficClass(
                name="chat",
                num_prompts=400,
                input_len=32,
                output_len=40,
                arrivals=ClosedLoop(2),
            ),
            TrafficClass(
                name="long",
                num_prompts=100,
                input_len=1900,
                output_len=30,
                arrivals=ClosedLoop(1),
            ),
        ),
        must={"itl_stalls": "long prompts"},
        may=frozenset({"queue_time"}),
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    state = STATES[name]
    options = [word for key, value in state.args.items() for word in (_option(key), str(value))]
    with serving(*options, log=tmp_path / "log") as served:
        findings = provoke({name: state}, {name: served.url}, for_s=FOR_S, every_s=EVERY_S)[name]
    assert state.is_named(findings), shown(findings)
    if name == "healthy":
        hit_rate = found(findings, "prefix_hit_rate")
        assert hit_rate.severity == Severity.OK, shown(findings)
        assert hit_rate.figures["hit_rate"] > 0.5
    if name == "growing":
        assert found(findings, "prefix_hit_rate").severity == Severity.INFO, shown(findings)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
