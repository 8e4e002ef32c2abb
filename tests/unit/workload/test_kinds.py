from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from headway.errors import InvalidConfig
from headway.workload import (
    KINDS,
    Arrivals,
    AtOnce,
    ClosedLoop,
    Constant,
    Documents,
    LogNormal,
    OnOff,
    Poisson,
    Ramp,
    SharedPrefix,
    Trace,
    TrafficClass,
    Turns,
    Workload,
    read_workload,
    scaled,
)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_read_by_its_name_and_fits_the_default_model(name: str) -> None:
    items = read_workload(name).items()
    assert max(item.input_len + item.output_len for item in items) < 8192
    assert 30 <= items[-1].arrival_s <= 120


def test_chats_are_many_short_questions_with_one_system_prompt_and_others_that_follow() -> None:
    items = read_workload("chat").items()
    assert len(items) > 100
    assert len({item.token_ids[:256] for item in items}) == 1
    assert sum(item.follows is not None for item in items) > 40
    assert max(len(item.own_ids) for item in items if item.follows is not None) <= 128


def test_a_file_that_is_called_like_a_kind_is_read_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = {"name": "mine", "num_prompts": 1, "input_len": 4, "output_len": 1}
    Path("chat").write_text(json.dumps({"classes": [kind]}))
    assert read_workload("./chat").classes[0].name == "mine"
    assert read_workload("chat").classes[0].name == "chat"


WHOLE = TrafficClass(
    name="a",
    num_prompts=10,
    input_len=(100, 200),
    output_len=LogNormal(median=30, sigma=0.5, low=10, high=90),
    arrivals=Poisson(2.0),
    shared_prefix=SharedPrefix(len=50),
    documents=Documents(len=500, count=9),
    turns=Turns(count=(1, 3), input_len=20, pause_s=2.0),
)


def test_all_lengths_and_rates_are_scaled_and_nothing_else() -> None:
    trace = Trace(name="t", path="t.csv", rate_scale=2.0)
    found = scaled(Workload(classes=(WHOLE,), traces=(trace,)), rate=3, length=0.5)
    replace = msgspec.structs.replace
    kind = replace(
        WHOLE,
        input_len=(50, 100),
        output_len=LogNormal(median=15, sigma=0.5, low=5, high=45),
        arrivals=Poisson(6.0),
        shared_prefix=SharedPrefix(len=25),
        documents=Documents(len=250, count=9),
        turns=Turns(count=(1, 3), input_len=10, pause_s=2.0),
    )
    there = replace(trace, rate_scale=6.0, length_scale=0.5)
    assert found == Workload(classes=(kind,), traces=(there,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Constant(4.0), Constant(2.0)),
        (Ramp(rate_from=1, rate_to=3, duration_s=9), Ramp(rate_from=2, rate_to=6, duration_s=9)),
        (OnOff(rate_on=4, on_s=3, off_s=5), OnOff(rate_on=8, on_s=3, off_s=5)),
        (ClosedLoop(3), ClosedLoop(3)),
    ],
)
def test_every_kind_of_rate_is_scaled(before: object, after: object) -> None:
    beside = msgspec.structs.replace(WHOLE, name="b")
    kind = msgspec.structs.replace(WHOLE, arrivals=before)
    assert scaled(Workload(classes=(kind, beside)), rate=2).classes[0].arrivals == after


def test_a_scale_that_changes_nothing_or_breaks_the_load_is_refused() -> None:
    at_once = msgspec.structs.replace(WHOLE, arrivals=AtOnce())
    with pytest.raises(InvalidConfig, match="rate_scale: the workload has no rate"):
        scaled(Workload(classes=(at_once,)), rate=2)
    with pytest.raises(InvalidConfig, match=r"length_scale: 0.001 makes classes\[0\].shared"):
        scaled(Workload(classes=(WHOLE,)), length=0.001)
    with pytest.raises(InvalidConfig, match="length_scale: must be above 0 and finite"):
        scaled(Workload(classes=(WHOLE,)), length=0)
    assert scaled(Workload(classes=(at_once,))) == Workload(classes=(at_once,))


GUIDE = (Path(__file__).parents[3] / "docs/guide/benchmarking.md").read_text(encoding="utf-8")


def test_the_guides_workloads_and_arrivals_are_some() -> None:
    blocks = re.findall(r"^    (\{\"(?:classes|traces)\".*?\]\})$", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        msgspec.json.decode(block, type=Workload).check()
    arrivals = re.findall(r"^\| `(\{\"type\".*?\})` \|", GUIDE, re.MULTILINE)
    assert len(arrivals) == 7
    for each in arrivals:
        kind = msgspec.structs.replace(WHOLE, arrivals=msgspec.json.decode(each, type=Arrivals))
        Workload(classes=(kind,)).check()
