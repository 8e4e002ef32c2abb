"""A doctor beside servers over simulated engines, each driven into a state that it must name, and
no other. Real time passes, in all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headway.doctor.finding import Finding, Severity
from headway.workload import ClosedLoop, Constant, SharedPrefix, TrafficClass, Workload
from provoked import State, found, provoke, shown
from provoked_states import states_alike
from simulated_server import VOCAB_SIZE, simulated_servers

FOR_S, EVERY_S = 3.0, 0.3
MANY = 200
"""Requests: more than are sent until the windows end, and few enough to be made in no time."""


def traffic(**fields: object) -> TrafficClass:
    return TrafficClass(**({"name": "all", "num_prompts": MANY} | fields))


def load(*classes: TrafficClass) -> Workload:
    return Workload(classes=classes, token_ids=(0, VOCAB_SIZE))


def asked(**fields: object) -> Workload:
    return load(traffic(**fields))


STATES = states_alike(asked, evicting_users=8) | {
    "healthy": State(
        args={"num_kv_blocks": 1024},
        workload=load(
            traffic(
                input_len=512,
                output_len=10,
                arrivals=Constant(0.3),
                shared_prefix=SharedPrefix(320),
            )
        ),
    ),
    "growing": State(
        args={"num_kv_blocks": 1024, "max_num_batched_tokens": 64, "max_num_seqs": 32},
        workload=load(traffic(input_len=320, output_len=2, arrivals=Constant(0.1))),
        begun=("request_success", 1),
        windows=2.0,
        must={"waiting_growing": "what holds up the first is 'budget'"},
        may=frozenset({"queue_time"}),
    ),
    "stalling": State(
        args={"num_kv_blocks": 2048, "max_num_batched_tokens": 2048},
        workload=load(
            traffic(name="chat", input_len=32, output_len=40, arrivals=ClosedLoop(12)),
            traffic(
                name="long", num_prompts=30, input_len=2000, output_len=2, arrivals=Constant(1.2)
            ),
        ),
        must={"itl_stalls": "long prompts"},
        may=frozenset({"queue_time"}),
    ),
    "flooded": State(
        args={"num_kv_blocks": 256, "max_num_seqs": 2, "max_num_queued_reqs": 2},
        workload=load(traffic(input_len=32, output_len=8, arrivals=Constant(0.1))),
        must={"rejections": "a flood"},
        may=frozenset({"running_at_limit", "queue_time"}),
    ),
}
STATES["narrow"] = replace(STATES["narrow"], by_command=True)


@pytest.fixture(scope="module")
def examined() -> Iterator[dict[str, list[Finding]]]:
    """What was found in each state."""
    own = {name: {"args": state.args} for name, state in STATES.items() if not state.servers}
    with simulated_servers(own) as urls:
        yield provoke(STATES, urls, for_s=FOR_S, every_s=EVERY_S)


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_named_and_nothing_else(
    examined: dict[str, list[Finding]], name: str
) -> None:
    state, findings = STATES[name], examined[name]
    assert state.is_named(findings), shown(findings)


@pytest.mark.parametrize(
    ("state", "name", "severity"),
    [
        ("healthy", "prefix_hit_rate", Severity.OK),
        ("idle", "no_traffic", Severity.INFO),
        ("to spare", "waiting_empty", Severity.INFO),
        ("to spare", "prefix_hit_rate", Severity.INFO),
        ("flooded", "rejections", Severity.CRITICAL),
    ],
)
def test_it_says_how_much_it_matters(
    examined: dict[str, list[Finding]], state: str, name: str, severity: Severity
) -> None:
    findings = examined[state]
    assert found(findings, name).severity == severity, shown(findings)
