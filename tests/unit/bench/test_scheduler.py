"""The measurement of the scheduler, over a clock that ticks once each time it is asked."""

from __future__ import annotations

import json
from io import StringIO
from itertools import count, pairwise
from pathlib import Path

import pytest

from headway.bench.scheduler import Cost, Decodes, run_bench, step_cost


def ticking():  # type: ignore[no-untyped-def]
    ticks = count()
    return lambda: next(ticks) / 1000


def test_a_step_is_timed_without_what_is_not_the_scheduler() -> None:
    assert step_cost(1, rounds=2, timer=ticking()) == Cost(pytest.approx(2), pytest.approx(2))


@pytest.fixture(autouse=True)
def _own_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting of the process is left alone."""
    monkeypatch.setattr("headway.bench.scheduler.calm_collector", lambda: None)


def test_steady_requests_cross_blocks_and_none_ends() -> None:
    decodes, clock = Decodes(64), ticking()
    decodes._records.clear()
    for _ in range(16):
        decodes.step(clock)
    steps = [record for outcome in decodes._records for record in outcome]
    assert all(len(step.chunks) == 64 and not step.admissions for step in steps)
    tables = [[len(chunk.block_table) for chunk in step.chunks] for step in steps]
    grown = [sum(b > a for a, b in zip(*pair, strict=True)) for pair in pairwise(tables)]
    assert set(grown) == {4}


def test_requests_cross_blocks_and_end_in_every_round() -> None:
    decodes = Decodes(256, busy=True)
    clock = ticking()
    records = decodes._records
    records.clear()
    for _ in range(16):
        decodes.step(clock)
    steps = [record for outcome in records for record in outcome]
    assert all(len(step.chunks) == 256 for step in steps)
    admitted = [len(step.admissions) for step in steps]
    assert min(admitted) >= 1
    tables = [{chunk.request_id: chunk.block_table for chunk in step.chunks} for step in steps]
    grown = {
        name
        for before, after in pairwise(tables)
        for name, table in after.items()
        if name in before and len(table) > len(before[name])
    }
    assert len(grown) > 200


def test_the_table_and_the_file(tmp_path: Path) -> None:
    out = StringIO()
    path = tmp_path / "figures.json"
    run_bench(widths=(1, 3), rounds=3, output_json=path, out=out, timer=ticking())
    lines = out.getvalue().splitlines()
    assert [line[:24].strip() for line in lines] == [
        "ms",
        "step of 1 decodes",
        "step of 3 decodes",
        "step of 1, busy",
        "step of 3, busy",
        "32k prompt, door",
        "32k prompt, hash",
        "32k prompt, miss",
        "32k prompt, hit",
    ]
    assert lines[1].split()[-3:] == ["2.000", "2.000", "0.03"]
    figures = json.loads(path.read_text())
    assert set(figures["step_ms"]) == set(figures["busy_step_ms"]) == {"1", "3"}
    assert set(figures["prompt_32k_ms"]) == {"door", "hash", "miss", "hit"}
    assert figures["least"]["step_ms"]["1"] == pytest.approx(2)
