"""A recording, run again, gives the same plans."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from engines import SMALL
from headway.core.policies import POLICIES
from headway.core.request import FinishReason
from headway.errors import InvalidConfig
from headway.record.compare import first_difference, run_replay, steps
from headway.record.lines import Added, Applied, Finished, Planned, Recording
from headway.record.replay import replay
from headway.sim.executor import expected_tokens
from recorded import COSTS, VOCAB, RecordedDriver, RecordedEngine


def prompt(start: int, length: int) -> list[int]:
    return [(start * 5 + position * 7) % VOCAB for position in range(length)]


def answer(*files: Path, **options: object) -> tuple[int, str]:
    out = StringIO()
    return run_replay(files, out=out, **options), out.getvalue()  # type: ignore[arg-type]


def busy(path: Path, **config: object) -> RecordedEngine:
    """A bit of everything, in a pool that is too small for it."""
    engine = RecordedEngine(path, **config)
    engine.executor.fail_at = frozenset({9})
    engine.executor.nan_at = frozenset({30})
    urgent = {"priority": -1} if engine.config.scheduling_policy == "priority" else {}
    for i in range(6):
        engine.add(f"long{i}", prompt(i, 20), max_tokens=24, tenant="ab"[i % 2])
    engine.add("samples", prompt(0, 13), count=3, temperature=1.0)
    engine.add("rows", prompt(1, 10), prompt_logprobs=1)
    engine.add("late", prompt(2, 10), queue_timeout_s=0.5)
    for _ in range(6):
        engine.step()
    engine.add("urgent", prompt(7, 12), **urgent)
    engine.add("stopped", prompt(3, 9), max_tokens=30, stop=["a", "b", "c", "d"])
    engine.add("eos", prompt(4, 9), max_tokens=30, ignore_eos=False, stop_token_ids=[5, 6, 7, 8])
    for _ in range(6):
        engine.step()
    engine.core.abort("long0")
    engine.core.abort("long5")
    engine.run()
    for turn in range(3):  # a chat: what was answered is part of the next prompt
        said = engine.tokens[f"chat{turn - 1}"] if turn else prompt(9, 10)
        engine.add(f"chat{turn}", [*said, 1, 2, 3], max_tokens=9)
        engine.add(f"salted{turn}", [*said, 4], cache_salt="mine")
        engine.run()
    engine.close()
    return engine


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_replay_gives_the_same_plans(tmp_path: Path, policy: str, mode: str) -> None:
    path = tmp_path / "recording"
    engine = busy(path, scheduling_policy=policy, preemption_mode=mode, num_swap_blocks=16)
    assert answer(path) == (0, f"identical, {len(engine.steps)} steps\n")
    # It is worth something only if much went on.
    assert any(step.preemptions for step in engine.steps)
    assert any(step.swapped_in_blocks for step in engine.steps) == (mode == "swap")
    assert any(step.failed for step in engine.steps)
    assert {"stop", "length", "abort", "error"} <= set(engine.reasons.values())
    hits = {
        name: admission.hit_tokens
        for step in engine.steps
        for name, admission in step.admissions.items()
        if admission.kind == "first"
    }
    assert hits["chat1"] == 20, "13 of the prompt before, the others of its output"
    assert hits["salted0"] == 0


def crowd(path: Path, policy: str, seed: int) -> RecordedDriver:
    driver = RecordedDriver(
        num_blocks=20,
        block_size=2 + 2 * (seed % 2),
        width=4,
        budget=20,
        max_model_len=38,
        policy=policy,
        mode=("recompute", "swap", "auto")[seed % 3],
        costs=COSTS,
        swap_slots=10,
        max_preemptions=2,
        skip_ahead=seed % 2,
        vocab_size=30,
        watermark=0.1,
        max_reqs=12,
    )
    driver.record_to(path)
    return driver


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(6))
def test_two_plans_in_flight_replay_too(tmp_path: Path, policy: str, seed: int) -> None:
    path = tmp_path / "recording"
    driver = crowd(path, policy, seed)
    driver.play(seed, 400)
    driver.close()
    assert answer(path) == (0, f"identical, {len(driver.records)} steps\n")
    assert len(driver.records) > 100
    assert {record.finish_reason for record in driver.ended} >= {"stop", "length", "abort"}
    assert any(record.failed for record in driver.records)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(3))
def test_s14_drafts_replay_too_as_many_are_accepted(tmp_path: Path, policy: str, seed: int) -> None:
    path = tmp_path / "recording"
    driver = crowd(path, policy, seed)
    driver.play(seed, 400, drafting=True)
    driver.close()
    assert answer(path) == (0, f"identical, {len(driver.records)} steps\n")
    num_drafts = sum(record.num_draft_tokens for record in driver.records)
    num_accepted = sum(record.num_accepted_tokens for record in driver.records)
    assert num_drafts > num_accepted > 20


def test_s14_a_replay_with_a_smaller_budget_has_fewer_drafts(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    driver = crowd(path, "fcfs", 0)
    driver.play(0, 400, drafting=True)
    driver.close()
    counts = []
    for overrides in ({}, {"max_num_batched_tokens": 5}):
        planned = [line for line in replay(Recording(path), overrides) if isinstance(line, Planned)]
        counts.append(sum(sum(line.drafts.values()) for line in planned))
    assert counts[0] == sum(record.num_draft_tokens for record in driver.records)
    assert any(record.failed and record.num_draft_tokens for record in driver.records)
    assert 0 < counts[1] < counts[0]
    assert answer(path, settings=["max_num_batched_tokens=5"])[0] == 1


def test_s14_a_difference_in_drafts_is_told(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path, guesses in (first, [1, 2]), (second, [1]):
        driver = RecordedDriver()
        driver.record_to(path)
        driver.recorder.added([driver.add("r", [5, 6, 7], max_tokens=9)], 0.0)
        driver.step()
        driver.step({"r": guesses})
        driver.run()
        driver.close()
    status, text = answer(first, second, diff=True)
    assert status == 1
    assert "request 1 (r): 3 tokens from 3, 2 of them drafts | 2 tokens from 3, 1 of them" in text


def test_without_the_hashes_of_outputs_hits_on_them_are_lost(tmp_path: Path) -> None:
    """So what the tests above compare depends on them."""
    path = tmp_path / "recording"
    engine = RecordedEngine(path)
    engine.add("asks", prompt(9, 13), max_tokens=9)
    engine.run()
    engine.add("goes on", [*engine.tokens["asks"], 1, 2, 3])
    engine.run()
    engine.close()
    assert answer(path)[0] == 0
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        for end in line.get("ended", ()) if line["kind"] == "result" else ():
            end["blocks"] = []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, text = answer(path)
    assert status == 1
    assert "(goes on): admitted (first), 20 of 25 tokens hit | admitted (first), 12 of 25" in text


def test_a_stop_token_at_the_end_of_a_block_is_found_again(tmp_path: Path) -> None:
    """With two plans in flight the token that ends a request is computed, and may fill a block."""
    path = tmp_path / "recording"
    driver = RecordedDriver(width=4)
    driver.record_to(path)
    prompt_ids = [10, 11, 12, 13, 14]
    stop = expected_tokens(prompt_ids, 3, driver.vocab_size)[2]
    request = driver.make("first", prompt_ids, max_tokens=9, stop_token_ids=[stop])
    driver.scheduler.add([request], driver.now)
    driver.recorder.added([request], driver.now)
    driver.plan()
    while not request.finished:
        driver.plan()
        driver.collect()
    driver.collect()
    assert len(request.token_ids) == 8
    again = driver.make("second", [*request.token_ids, 5], max_tokens=2)
    driver.scheduler.add([again], driver.now)
    driver.recorder.added([again], driver.now)
    driver.run()
    driver.close()
    assert again.num_cached_tokens == 8
    assert answer(path)[0] == 0


def test_the_first_step_that_differs_is_told(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = RecordedEngine(path)
    engine.add("a", prompt(0, 10))
    engine.step()
    for name in "bcd":
        engine.add(name, prompt(ord(name), 5))
    engine.run()
    engine.close()
    status, text = answer(path, settings=["max_num_seqs=2"])
    assert status == 1
    assert text.splitlines()[:4] == [
        "1 steps are the same; step 2, at 0.2 s, is not:",
        f"  {path} | replayed max_num_seqs=2",
        "  request 3 (c): 5 tokens from 0 | no tokens",
        "  request 4 (d): 5 tokens from 0 | no tokens",
    ]
    assert "  request 3 (c): admitted (first), 0 of 5 tokens hit | not admitted" in text
    assert "  waiting: {} | {'width': 2}" in text
    assert answer(path, settings=["max_num_seqs=4"])[0] == 0


def test_a_refusal_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = RecordedEngine(path)
    for name in "abc":
        engine.add(name, prompt(ord(name), 5))
    engine.run()
    engine.close()
    _, text = answer(path, settings=["max_num_queued_reqs=2"])
    assert "  request 3 (c): accepted | 2 requests are waiting and 1 more exceed" in text


def test_every_setting_can_be_changed_and_the_run_still_ends(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    busy(path)
    recording = Recording(path)
    for overrides in (
        {"scheduling_policy": "fair"},
        {"preemption_mode": "swap", "num_swap_blocks": 8},
        {"num_kv_blocks": "100"},
        {"max_num_batched_tokens": 4},
        {"enable_prefix_caching": "false"},
        {"block_size": 2, "max_model_len": 48},
        {"long_prefill_token_threshold": 3},
        {"recipe": "chat"},
    ):
        names: dict[int, str] = {}
        replayed = list(replay(recording, overrides))
        count, difference = first_difference(steps(recording, names), steps(replayed), names)
        assert difference is not None, overrides
        assert count == difference.num_equal < 200
        ended = [end for line in replayed if isinstance(line, Applied) for end in line.ended]
        assert ended


def test_a_recipe_changes_what_it_sets_in_the_same_memory_and_other_settings_win() -> None:
    recorded = msgspec.structs.replace(SMALL, num_kv_blocks=101, block_size=16, max_model_len=1616)
    config = recorded.with_overrides({"recipe": "chat", "max_num_seqs": "9"})
    assert (config.max_num_batched_tokens, config.block_size) == (8192, 32)
    assert (config.num_kv_blocks, config.max_model_len) == (50, 1600)
    assert (config.max_num_seqs, config.max_num_queued_reqs) == (9, 512)
    same = recorded.with_overrides({"recipe": "chat", "block_size": "16", "max_model_len": 99})
    assert (same.block_size, same.num_kv_blocks, same.max_model_len) == (16, 101, 99)
    with pytest.raises(InvalidConfig, match="recipe: must be one of chat, long-document, mixed"):
        recorded.with_overrides({"recipe": "fast"})


def test_two_recordings_are_compared(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, blocks in zip(paths, (24, 24, 23), strict=True):
        busy(path, num_kv_blocks=blocks)
    assert answer(*paths[:2], diff=True)[0] == 0
    status, text = answer(paths[0], paths[2], diff=True)
    assert status == 1
    assert text.startswith("0 steps are the same; step 1, at 0 s, is not:")
    assert "blocks_free: " in text


def test_a_run_that_goes_on_is_a_difference(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path, length in zip(paths, (5, 6), strict=True):
        engine = RecordedEngine(path)
        engine.add("a", prompt(0, 5), max_tokens=length)
        engine.run()
        engine.close()
    _, text = answer(*paths, diff=True)
    assert text.startswith("5 steps are the same; the end, at")
    assert "only the second goes on" in text


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    RecordedEngine(path).close()
    for settings in (
        ["max_num_seqs"],
        ["no_such=1"],
        ["max_num_seqs=many"],
        ["scheduling_policy=x"],
    ):
        with pytest.raises(InvalidConfig) as caught:
            answer(path, settings=settings)
        assert caught.value.field in ("set", "no_such", "max_num_seqs", "scheduling_policy")
    with pytest.raises(InvalidConfig, match="diff: takes 2"):
        answer(path, diff=True)


def test_an_id_may_be_used_again_while_its_last_step_runs(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    driver = RecordedDriver(width=4)
    driver.record_to(path)
    for length in (9, 5, 7):
        request = driver.make("same", length)
        driver.scheduler.add([request], driver.now)
        driver.recorder.added([request], driver.now)
        while len(driver.in_flight) < 2:
            driver.plan()
        driver.collect()
        assert driver.scheduler.finish("same", FinishReason.ABORT, driver.now)
        driver.recorder.finished("same", FinishReason.ABORT, driver.now)
    driver.run()
    driver.collect()
    driver.close()
    assert answer(path) == (0, f"identical, {len(driver.records)} steps\n")


def test_nothing_is_kept_of_requests_that_ended(tmp_path: Path) -> None:
    engine = RecordedEngine(tmp_path / "recording")
    for _ in range(3):
        engine.add("a", [1, 2, 3])
        engine.core.abort("a")
        engine.run()
    engine.add("b", [1, 2, 3])
    engine.run()
    recorder = engine.recorder
    kept = (recorder._live, recorder._numbers, recorder._gone, recorder._in_flight)
    assert not any(kept)
    engine.close()


def test_content_is_recorded_where_it_is_asked_for(tmp_path: Path) -> None:
    for content in (False, True):
        engine = RecordedEngine(tmp_path / "recording", content=content)
        engine.add("a", [9, 8, 7, 6, 5], cache_salt="secret-salt")
        engine.run()
        engine.add("b", [1, 2, 3])
        engine.core.abort("b")
        engine.close()
        assert b"secret-salt" not in (tmp_path / "recording").read_bytes()
        lines = list(Recording(tmp_path / "recording"))
        added = next(line for line in lines if isinstance(line, Added)).requests[0]
        ended = next(line for line in lines if isinstance(line, Applied) and line.ended).ended[0]
        finished = next(line for line in lines if isinstance(line, Finished)).ended
        assert added.token_ids == ([9, 8, 7, 6, 5] if content else None)
        assert ended.token_ids == (engine.tokens["a"][5:] if content else None)
        assert finished.token_ids == ([] if content else None)
        assert answer(tmp_path / "recording")[0] == 0
