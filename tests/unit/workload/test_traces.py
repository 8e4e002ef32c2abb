from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InvalidConfig
from headway.workload import Replay, Trace, WorkItem, Workload, read_workload
from headway.workload.traces import BLOCK

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 23:59:59.5000000,374,44\r
2023-11-17 00:00:01.0000000,396,109\r
2023-11-17 00:00:01.0000000,1,0\r
2023-11-17 00:00:09.5000000,1000,9"""

IDS = range(1000, 30_000)


def row(at_ms: int, length: int, output_len: int, *hash_ids: int) -> dict[str, object]:
    return {
        "timestamp": at_ms,
        "input_length": length,
        "output_length": output_len,
        "hash_ids": hash_ids,
    }


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def mooncake(directory: Path, *rows: object) -> str:
    path = directory / "mooncake.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


def replay(path: object, **fields: object) -> Replay:
    trace = Trace(name="t", path=str(path), **fields)
    trace.check("traces[0]")
    return trace.replay(0, IDS)


def shown(items: list[WorkItem]) -> list[tuple[float, int, int]]:
    return [(round(item.arrival_s, 6), item.input_len, item.output_len) for item in items]


def test_azures_requests_have_their_times_and_lengths_and_share_nothing(azure: Path) -> None:
    items = replay(azure).items
    assert shown(items) == [(0, 374, 44), (1.5, 396, 109), (1.5, 1, 1), (10, 1000, 9)]
    assert len({item.token_ids[0] for item in items}) == 4
    assert not replay(azure).shares_prefixes


def test_a_part_of_a_trace_scaled_and_cut(azure: Path) -> None:
    found = replay(
        azure, start_s=1.0, duration_s=9.5, rate_scale=2.0, length_scale=0.5,
        max_input_len=300, max_output_len=50,
    )  # fmt: skip
    assert shown(found.items) == [(0.25, 198, 50), (0.25, 1, 1), (4.5, 300, 4)]
    assert (found.cut_inputs, found.cut_outputs) == (1, 1)
    assert shown(replay(azure, duration_s=1.5).items) == [(0, 374, 44)]
    assert shown(replay(azure, num_prompts=2).items) == [(0, 374, 44), (1.5, 396, 109)]


LENGTHS = st.lists(st.integers(1, 4 * BLOCK), min_size=2, max_size=6)


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.sampled_from([1 / 64, 0.1, 1.0, 1.7]), st.data())
def test_equal_hash_ids_are_equal_tokens_and_others_are_not(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], scale: float, data: st.DataObject
) -> None:
    rows = []
    for index, length in enumerate(lengths):
        count = math.ceil(length / BLOCK)
        common = data.draw(st.integers(0, count))
        own = range(100 * (index + 1), 100 * (index + 1) + count - common)
        rows.append(row(1000 * index, length, 1, *range(common), *own))
    items = replay(mooncake(tmp_path_factory.mktemp("t"), *rows), length_scale=scale).items
    block = round(BLOCK * scale)
    for a, one in zip(rows, items, strict=True):
        last = a["input_length"] - BLOCK * (len(a["hash_ids"]) - 1)
        whole = len(a["hash_ids"]) - 1
        assert one.input_len == block * whole + max(1, round(last * block / BLOCK))
        for b, two in zip(rows, items, strict=True):
            pairs = zip(a["hash_ids"], b["hash_ids"], strict=False)
            equal = 0
            for x, y in pairs:
                if x != y:
                    break
                equal += block
            equal = min(equal, one.input_len, two.input_len)
            assert one.token_ids[:equal] == two.token_ids[:equal]
            if equal + 8 <= min(one.input_len, two.input_len):
                assert one.token_ids[: equal + 8] != two.token_ids[: equal + 8]


def test_a_seed_is_other_text_at_the_same_times(tmp_path: Path) -> None:
    trace = Trace(name="t", path=mooncake(tmp_path, row(0, 600, 3, 0, 1), row(5, 500, 3, 0)))
    one, two = (Workload(traces=(trace,), seed=seed).items() for seed in (1, 2))
    assert shown(one) == shown(two)
    assert trace.replay(0, IDS).shares_prefixes
    assert one[0].token_ids[:500] == one[1].token_ids
    assert not {item.token_ids for item in one} & {item.token_ids for item in two}


def test_no_more_of_a_file_is_read_than_is_used(tmp_path: Path) -> None:
    path = mooncake(tmp_path, row(0, 1, 1, 0), row(2000, 1, 1, 1), {"timestamp": "never"})
    assert len(replay(path, num_prompts=2).items) == 2
    assert len(replay(path, duration_s=1.0).items) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0, 600, 1, 0)], "line 1: has 1 hash_ids for 600 tokens; one for each 512"),
        ([row(0, 1, 1, 0), row(1, 0, 1)], "line 2: a prompt of 0 tokens and an answer of 1"),
        ([row(0, 1, -1, 0)], "line 1: a prompt of 1 tokens and an answer of -1"),
        ([row(9, 1, 1, 0), row(8, 1, 1, 0)], "line 2: comes before the one above it"),
        ([{"timestamp": 1}], "line 1: Object missing required field"),
        ([["no"]], "is no trace: it begins neither with TIMESTAMP,.* nor with a JSON object"),
        ([], "is no trace"),
    ],
)
def test_a_bad_line_is_named(rows: list[object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=rf"^workload: .*mooncake.jsonl: {message}"):
        replay(mooncake(tmp_path, *rows))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:17:03,5", "line 6: has 2 fields, not 3"),
        ("2023-11-17 00:00:10,x,5", "line 6: invalid literal"),
        ("yesterday,4,5", "line 6: Invalid isoformat"),
        ("2023-11-17 00:00:10,4," + "5" * (1 << 20), "line 6: is longer than 1,048,576 bytes"),
    ],
)
def test_a_bad_line_of_a_table_is_named(azure: Path, line: str, message: str) -> None:
    azure.write_text(f"{AZURE}\n{line}")
    with pytest.raises(InvalidConfig, match=rf"azure.csv: {message}"):
        replay(azure)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "mooncake"}, "azure.csv: is in the format azure, not mooncake"),
        ({"start_s": 100.0}, "azure.csv: has no requests from start_s on"),
        ({"start_s": -1.0}, r"traces\[0\].start_s: must be from 0"),
        ({"rate_scale": 0.0}, r"traces\[0\].rate_scale: must be above 0"),
        ({"duration_s": math.inf}, r"traces\[0\].duration_s: must be above 0 and finite"),
        ({"num_prompts": 0}, r"traces\[0\].num_prompts: must be at least 1"),
    ],
)
def test_a_field_that_cannot_be_is_named(
    azure: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        replay(azure, **fields)


def test_blocks_must_stay_long_enough_to_differ(tmp_path: Path) -> None:
    path = mooncake(tmp_path, row(0, 1, 1, 0))
    with pytest.raises(InvalidConfig, match=r"length_scale must be at least 0.015625"):
        replay(path, length_scale=0.01)


def test_a_path_in_a_workload_is_from_there_and_stays_so(tmp_path: Path, azure: Path) -> None:
    there = tmp_path / "loads"
    there.mkdir()
    (there / "w.json").write_text(json.dumps({"traces": [{"name": "t", "path": "../azure.csv"}]}))
    workload = read_workload(there / "w.json")
    assert Path(workload.traces[0].path).is_absolute()
    assert len(workload.items()) == 4
    with pytest.raises(InvalidConfig, match=r"absent.csv: No such file"):
        replay(tmp_path / "absent.csv")
