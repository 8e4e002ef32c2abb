from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from headway.errors import InvalidConfig
from headway.workload import (
    ClosedLoop,
    Constant,
    Poisson,
    SharedPrefix,
    TrafficClass,
    Workload,
    read_workload,
)

MIXED = Path(__file__).parents[3] / "docs/guide/workloads/mixed.json"
SHORT = TrafficClass(
    name="short", num_prompts=50, input_len=(16, 48), output_len=8, arrivals=Poisson(5.0)
)


def test_the_same_workload_is_the_same_requests_and_another_seed_others() -> None:
    workload = Workload(classes=(SHORT,), seed=3)
    assert workload.items() == workload.items()
    other = msgspec.structs.replace(workload, seed=4).items()
    assert not {item.token_ids for item in other} & {item.token_ids for item in workload.items()}


def test_a_change_of_one_thing_leaves_the_others() -> None:
    before = Workload(classes=(SHORT,)).items()
    faster = msgspec.structs.replace(SHORT, arrivals=Poisson(50.0))
    after = Workload(classes=(faster,)).items()
    assert [item.token_ids for item in before] == [item.token_ids for item in after]
    assert [item.arrival_s for item in before] == pytest.approx(
        [10 * item.arrival_s for item in after]
    )
    longer = msgspec.structs.replace(SHORT, output_len=(1, 9))
    assert [(item.token_ids, item.arrival_s) for item in Workload(classes=(longer,)).items()] == [
        (item.token_ids, item.arrival_s) for item in before
    ]


def test_prompts_have_the_lengths_and_tokens_asked_for() -> None:
    items = Workload(classes=(SHORT,), token_ids=(7, 9)).items()
    assert {len(item.token_ids) for item in items} <= set(range(16, 49))
    assert {token for item in items for token in item.token_ids} == {7, 8}
    assert {item.output_len for item in items} == {8}


def test_a_share_of_the_prompts_begins_with_one_of_the_shared_prefixes() -> None:
    kind = TrafficClass(
        name="rag",
        num_prompts=2000,
        input_len=(20, 30),
        output_len=1,
        shared_prefix=SharedPrefix(len=16, share=0.6, count=3),
    )
    items = Workload(classes=(kind,)).items()
    begins = Counter(item.token_ids[:16] for item in items)
    shared = {begin: count for begin, count in begins.items() if count > 1}
    assert len(shared) == 3
    # Five standard deviations of a binomial distribution.
    assert abs(sum(shared.values()) - 1200) < 110
    assert all(abs(count - 400) < 85 for count in shared.values())
    assert {len(item.token_ids) for item in items} <= set(range(20, 31))
    assert len({item.token_ids for item in items}) == 2000


def test_classes_come_in_one_order_of_arrival() -> None:
    long = TrafficClass(
        name="long", num_prompts=3, input_len=99, output_len=2, arrivals=Constant(2.0)
    )
    items = Workload(classes=(SHORT, long)).items()
    times = [item.arrival_s for item in items]
    assert times == sorted(times)
    assert [item.arrival_s for item in items if item.class_name == "long"] == [0.0, 2.0, 4.0]


def test_only_a_closed_loop_has_users() -> None:
    loop = msgspec.structs.replace(SHORT, name="loop", arrivals=ClosedLoop(4))
    workload = Workload(classes=(SHORT, loop))
    assert (workload.users("short"), workload.users("loop")) == (None, 4)


def test_the_mixed_load_of_the_guide() -> None:
    items = read_workload(MIXED).items()
    short = [item for item in items if item.class_name == "short"]
    long = [item for item in items if item.class_name == "long"]
    assert len(short) == 120
    assert short[-1].arrival_s == pytest.approx(60.0)
    lengths = [len(item.token_ids) for item in short]
    assert 128 <= min(lengths) < 140 < 370 < max(lengths) <= 384
    assert [(item.arrival_s, len(item.token_ids)) for item in long] == [
        (5.0 * index, 1800) for index in range(12)
    ]
    assert {item.output_len for item in items} == {64}


def test_a_workload_is_read_as_it_was_saved_alone_or_in_a_result(tmp_path: Path) -> None:
    workload = Workload(classes=(SHORT,), seed=9)
    path = tmp_path / "saved.json"
    path.write_bytes(msgspec.json.encode(workload))
    assert read_workload(path) == workload
    path.write_bytes(msgspec.json.encode({"completed": 3, "workload": workload}))
    assert read_workload(path) == workload


KIND = {"name": "a", "num_prompts": 1, "input_len": 4, "output_len": 1}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"classes": []}, r"classes: \(and traces\) must be one or more"),
        ({"classes": [KIND, KIND]}, r"classes: .*\['a', 'a'\]"),
        ({"classes": [KIND | {"num_prompts": 0}]}, r"classes\[0\].num_prompts: must be at least 1"),
        ({"classes": [KIND | {"input_len": [4, 3]}]}, r"classes\[0\].input_len: must be"),
        ({"classes": [KIND | {"output_len": 0}]}, r"classes\[0\].output_len: must be"),
        ({"classes": [KIND | {"inputlen": 1}]}, r"unknown field `inputlen` - at `\$.classes"),
        ({"classes": [KIND | {"arrivals": {"type": "weibull"}}]}, "Invalid value 'weibull'"),
        ({"classes": [KIND | {"arrivals": {"type": "poisson"}}]}, "required field `rate`"),
        (
            {"classes": [KIND | {"shared_prefix": {"len": 4}}]},
            r"shared_prefix.len: must be from 1 to below the shortest prompt \(4\), not 4",
        ),
        ({"classes": [KIND | {"shared_prefix": {"len": 1, "share": 0}}]}, "share: must be in"),
        ({"classes": [KIND | {"shared_prefix": {"len": 1, "count": 0}}]}, "count: must be at"),
        ({"classes": [KIND], "token_ids": [5, 5]}, "token_ids: must be two ids in order"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_its_name_and_the_field(
    found: object, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(found))
    with pytest.raises(InvalidConfig, match=f"^workload: .*w.json: .*{message}"):
        read_workload(path)


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"absent\.json: No such file"):
        read_workload(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InvalidConfig, match=r"broken.json: Input data was truncated"):
        read_workload(tmp_path / "broken.json")
