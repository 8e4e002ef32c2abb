"""A doctor beside `headway serve` with the default model, driven into each of the states.

Not part of `make test`, for it takes some minutes: `.ci/run` does it, and
`make test ARGS=tests/doctor`. Loads are such that a machine's speed does not change the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.doctor.finding import Severity
from headway.workload import ClosedLoop, Constant, SharedPrefix, TrafficClass, Workload
from provoked import State, found, provoke, shown
from provoked_states import states_alike
from soak.served import serving

FOR_S, EVERY_S = 15.0, 0.5
ONE_THREAD = {"num_threads": 1}
"""Two that wait for each other would crawl on a busy machine."""


MANY = 2000
"""Requests: more than are sent until the window ends."""


def traffic(**fields: object) -> TrafficClass:
    return TrafficClass(**({"name": "chat", "num_prompts": MANY} | fields))


def load(*classes: TrafficClass) -> Workload:
    return Workload(classes=classes)


def asked(**fields: object) -> Workload:
    return load(traffic(**fields))


STATES = states_alike(asked, evicting_users=1, **ONE_THREAD) | {
    "healthy": State(
        args=ONE_THREAD | {"num_kv_blocks": 1024},
        workload=load(
            traffic(
                num_prompts=120,
                input_len=112,
                output_len=16,
                arrivals=Constant(0.9),
                shared_prefix=SharedPrefix(96),
            )
        ),
    ),
    "growing": State(
        args=ONE_THREAD | {"num_kv_blocks": 4096},
        workload=load(
            traffic(
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
            traffic(num_prompts=400, input_len=32, output_len=40, arrivals=ClosedLoop(2)),
            traffic(
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
    "flooded": State(
        args=ONE_THREAD | {"num_kv_blocks": 256, "max_num_seqs": 2, "max_num_queued_reqs": 2},
        workload=load(traffic(input_len=32, output_len=60, arrivals=Constant(0.1))),
        must={"rejections": "a flood"},
        may=frozenset({"running_at_limit", "queue_time"}),
    ),
}
TOGETHER = ("healthy", "idle", "spread badly")
SEVERITIES = {
    "healthy": ("prefix_hit_rate", Severity.OK),
    "idle": ("no_traffic", Severity.INFO),
    "to spare": ("waiting_empty", Severity.INFO),
    "growing": ("prefix_hit_rate", Severity.INFO),
    "flooded": ("rejections", Severity.CRITICAL),
}
"""Of findings that are not complaints, and of one that is more."""


@pytest.mark.parametrize(
    "names", [TOGETHER, *((name,) for name in STATES if name not in TOGETHER)], ids=", ".join
)
def test_each_state_is_named_and_nothing_else(names: Sequence[str], tmp_path: Path) -> None:
    states = {name: STATES[name] for name in names}
    with contextlib.ExitStack() as servers:
        urls = {
            name: servers.enter_context(serving(*_options(state), log=tmp_path / name)).url
            for name, state in states.items()
            if not state.servers
        }
        examined = provoke(states, urls, for_s=FOR_S, every_s=EVERY_S)
    for name, findings in examined.items():
        assert states[name].is_named(findings), name + shown(findings)
        if name in SEVERITIES:
            finding, severity = SEVERITIES[name]
            assert found(findings, finding).severity == severity, shown(findings)
    if "healthy" in names:
        assert found(examined["healthy"], "prefix_hit_rate").figures["hit_rate"] > 0.5


def _options(state: State) -> list[str]:
    given = ((f"--{name.replace('_', '-')}", str(value)) for name, value in state.args.items())
    return [word for option in given for word in option]
