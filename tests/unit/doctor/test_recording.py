"""A recording read as the series that its engine's metrics would have been."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headway.doctor.diagnosis import diagnose
from headway.doctor.finding import Finding, Severity
from headway.doctor.readings import Window
from headway.doctor.recording import recorded_series
from headway.errors import InvalidRecording, SourceError
from recorded import RecordedEngine
from unit.record.test_replay import busy, prompt


def window(path: Path, **options: float) -> Window:
    return Window(recorded_series(path, **options))


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_what_the_engine_counted_is_what_is_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "run.jsonl"
    engine = busy(path, preemption_mode=mode, num_swap_blocks=16)
    steps, seen = engine.steps, window(path)
    admissions = [each for step in steps for each in step.admissions.values()]
    first = [each for each in admissions if each.kind == "first"]
    made_tokens = sum(step.num_output_tokens for step in steps)
    expected = {
        "num_preemptions": sum(sum(step.preemptions.values()) for step in steps),
        "prefix_cache_queries": sum(each.lookup_tokens for each in first),
        "prefix_cache_hits": sum(each.hit_tokens for each in first),
        "prompt_tokens": sum(step.num_prompt_tokens for step in steps)
        + sum(each.hit_tokens for each in first),
        "recomputed_tokens": sum(step.recomputed_tokens for step in steps),
        "steps_failed": sum(step.failed for step in steps),
        "kv_cache_evictions": sum(step.evictions for step in steps),
        "generation_tokens": made_tokens,
        "request_success": len(engine.reasons),
    }
    assert expected["num_preemptions"]
    assert expected["steps_failed"]
    assert {name: seen.increase(name) for name in expected} == expected
    reasons = Counter(engine.reasons.values())
    assert {
        reason: seen.increase("request_success", finished_reason=reason) for reason in reasons
    } == reasons
    gaps, firsts = (
        seen.distribution(f"{name}_seconds")
        for name in ("inter_token_latency", "time_to_first_token")
    )
    assert gaps is not None
    assert firsts is not None
    assert gaps.count + firsts.count == made_tokens
    running = seen.levels("num_requests_running")
    assert running is not None
    assert running.max == max(step.num_running for step in steps)
    assert running.values[-1] == 0


def test_a_request_that_ends_while_it_is_preempted_does_not_run_less(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    engine = RecordedEngine(path, num_kv_blocks=10, max_model_len=40)
    for index in range(3):
        engine.add(f"r{index}", prompt(index, 8), max_tokens=20)
    while not any(step.preemptions for step in engine.steps):
        engine.step()
    assert (engine.core.state.num_running, engine.core.state.num_waiting) == (2, 1)
    engine.core.abort("r2")  # who came last gives way
    engine.close()
    seen = window(path)
    running, waiting = (seen.levels(f"num_requests_{state}") for state in ("running", "waiting"))
    assert running is not None
    assert waiting is not None
    assert (running.values[-1], waiting.values[-1]) == (2, 0)


def test_gauges_are_there_before_anything_has_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    busy(path)
    seen = window(path)
    for state in ("running", "waiting"):
        levels = seen.levels(f"num_requests_{state}")
        assert levels is not None
        assert len(levels.values) == seen.num_samples


def shared(path: Path, *, num_kv_blocks: int, **config: object) -> None:
    """Two dozen requests of four prefixes, 16 of 24 tokens long, one after the other."""
    engine = RecordedEngine(path, num_kv_blocks=num_kv_blocks, **config)
    for index in range(24):
        prefix = prompt(index % 4, 16)
        engine.add(f"r{index}", [*prefix, *prompt(index + 9, 8)], max_tokens=2)
        engine.run()
    engine.close()


def hit_rate(path: Path) -> Finding:
    findings = diagnose([recorded_series(path)])
    return next(each for each in findings if each.name == "prefix_hit_rate")


@pytest.mark.parametrize("blocks", [12, 200])
def test_it_tells_what_a_cache_of_any_size_would_have_found(tmp_path: Path, blocks: int) -> None:
    path = tmp_path / "run.jsonl"
    shared(path, num_kv_blocks=blocks, max_model_len=40)
    found = hit_rate(path)
    rate, ideal = found.figures["hit_rate"], found.figures["ideal_hit_rate"]
    assert ideal == pytest.approx(20 * 16 / (24 * 24))
    if blocks == 200:
        assert rate == ideal
        assert found.severity is Severity.OK
    else:
        assert rate is not None
        assert rate < 0.1
        assert found.severity is Severity.WARNING
        assert "too small" in found.cause


def test_with_caching_off_it_tells_what_that_costs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    shared(path, num_kv_blocks=200, enable_prefix_caching=False)
    found = hit_rate(path)
    assert found.severity is Severity.WARNING
    assert found.figures["ideal_hit_rate"] == pytest.approx(20 * 16 / (24 * 24))


def test_the_last_part_of_a_recording_can_be_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    shared(path, num_kv_blocks=200)
    whole, last = window(path), window(path, last_s=1.0)
    assert last.duration_s == pytest.approx(1.0)
    assert 0 < (last.increase("request_success") or 0) < (whole.increase("request_success") or 0)


def test_one_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    shared(path, num_kv_blocks=200)
    whole = window(path).increase("request_success") or 0
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert 0 < (window(path).increase("request_success") or 0) < whole


def test_what_is_no_recording_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other.jsonl"
    RecordedEngine(empty).close()
    with pytest.raises(SourceError, match="asked for nothing"):
        recorded_series(empty)
    other.write_text("{}\n")
    with pytest.raises(InvalidRecording):
        recorded_series(other)
