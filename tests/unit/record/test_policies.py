"""From a name to a policy, and the example of docs/guide/policies.md."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from driver import Driver
from headway.core.policies import POLICIES, FairPolicy
from headway.errors import InvalidConfig
from headway.record import policies
from headway.record.policies import make_policy
from headway.record.setup import SchedulerConfig, build_scheduler

GUIDE = Path(__file__).parents[3] / "docs/guide/policies.md"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the guide's example, where Python finds it."""
    [code] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "guide_example.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return "guide_example"


@pytest.mark.parametrize("name", POLICIES)
def test_each_of_ours_is_made_by_its_name(name: str) -> None:
    assert type(make_policy(name)) is POLICIES[name]


def test_options_reach_the_policy() -> None:
    weights = {"a": 2.0, "b": 0.5}
    config = SchedulerConfig(
        num_kv_blocks=8,
        block_size=4,
        max_model_len=32,
        max_num_batched_tokens=32,
        max_num_seqs=4,
        scheduling_policy="fair",
        fair_weights=weights,
        fair_output_weight=3.0,
    )
    policy = build_scheduler(config, vocab_size=10)._policy
    assert isinstance(policy, FairPolicy)
    assert (policy._weights, policy._output_weight) == (weights, 3.0)


def test_the_guides_example_orders_by_what_is_asked_for(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(f"{module}:ShortAnswersFirst")
    monkeypatch.setitem(POLICIES, "guide", type(policy))  # type: ignore[arg-type]
    d = Driver(width=1, policy="guide")
    d.add("runs", 4, max_tokens=3)
    d.step()
    d.add("long", 4, max_tokens=30)
    d.add("short", 4, max_tokens=2)
    d.run()
    assert [record.request_id for record in d.ended] == ["runs", "short", "long"]


def test_an_entry_point_names_a_policy(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("short", f"{module}:ShortAnswersFirst", policies.ENTRY_POINTS)

    def installed(*, group: str, name: str) -> list[EntryPoint]:
        return [point] if (group, name) == (point.group, point.name) else []

    monkeypatch.setattr(policies, "entry_points", installed)
    assert type(make_policy("short")).__name__ == "ShortAnswersFirst"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nonsense", "neither one of fcfs, priority"),
        ("no_such_module:Class", "ModuleNotFoundError"),
        ("math:no_such_name", "AttributeError"),
        ("builtins:dict", "no subclass"),
        ("math:sqrt", "TypeError"),
    ],
)
def test_a_name_that_leads_to_no_policy_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says) as caught:
        make_policy(name)
    assert caught.value.field == "scheduling_policy"
