"""`LLM` and `headway generate` with the default model."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from headway import LLM, SamplingParams
from headway.cli import main
from headway.errors import InvalidConfig, InvalidRequest
from headway.metrics import RequestRecord, StepRecord
from headway.record.compare import run_replay

CAPITAL = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(model_path: Path) -> LLM:
    return LLM(str(model_path), num_kv_blocks=200, max_num_seqs=16, debug_invariants=True)


def test_prompts_may_be_text_or_tokens_and_results_come_in_their_order(llm: LLM) -> None:
    tokens = llm.tokenizer.encode(CAPITAL)
    outputs = llm.generate([CAPITAL, "2 + 2 =", tokens, {"prompt": CAPITAL}], GREEDY)
    first, other, same, again = outputs
    assert first.outputs[0].text.startswith(" Paris")
    assert first.outputs[0].token_ids == same.outputs[0].token_ids == again.outputs[0].token_ids
    assert other.outputs[0].text != first.outputs[0].text
    assert (first.prompt, first.prompt_token_ids) == (CAPITAL, tokens)
    assert same.prompt is None
    assert first.finished
    assert first.outputs[0].finish_reason == "length"
    assert llm.generate(tokens, GREEDY)[0].outputs[0].text == first.outputs[0].text


def test_a_conversation_is_answered_up_to_the_end_of_turn(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=40))
    assert output.outputs[0].text == "The capital of Japan is Tokyo."
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)
    assert len(llm.chat([messages, messages], GREEDY)) == 2


def test_a_seed_makes_sampling_repeatable_whoever_else_is_there(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=12)
    alone = llm.generate(CAPITAL, params)[0].outputs[0].token_ids
    crowd = llm.generate(["Once upon a time", CAPITAL, "In short,"], params)
    assert crowd[1].outputs[0].token_ids == alone
    other = SamplingParams(temperature=1.0, top_p=0.9, seed=8, max_tokens=12)
    assert llm.generate(CAPITAL, other)[0].outputs[0].token_ids != alone


def test_streams_may_be_read_in_turn_and_left(llm: LLM) -> None:
    whole = [output.outputs[0].text for output in llm.generate([CAPITAL, "2 + 2 ="], GREEDY)]
    one, two = llm.stream(CAPITAL, GREEDY), llm.stream("2 + 2 =", GREEDY)
    texts = ["", ""]
    for first, second in zip(one, two, strict=True):
        texts[0] += first.text
        texts[1] += second.text
    assert texts == whole
    left = llm.stream(CAPITAL, SamplingParams(max_tokens=100))
    next(left)
    left.close()
    assert llm.generate(CAPITAL, GREEDY)[0].outputs[0].text == whole[0]


def test_a_hundred_prompts_share_one_mixed_batch_a_step(llm: LLM) -> None:
    steps: list[StepRecord] = []
    ended: list[RequestRecord] = []

    def observe(step: StepRecord | None, records: tuple[RequestRecord, ...]) -> None:
        steps.extend([step] if step else [])
        ended.extend(records)

    llm.add_observer(observe)
    prompts = [llm.tokenizer.encode(f"Story number {i}: " * (1 + i % 3)) for i in range(100)]
    params = [SamplingParams(temperature=0, max_tokens=2 + i % 4) for i in range(100)]
    outputs = llm.generate(prompts, params)
    assert all(1 <= len(out.outputs[0].token_ids) <= 2 + i % 4 for i, out in enumerate(outputs))
    assert len(ended) == 100
    busy = [step for step in steps if step.num_waiting]
    assert busy
    assert all(step.num_running == 16 or "budget" in step.waiting for step in busy)
    mixed = [
        step for step in steps if {bool(entry.admission) for entry in step.batch} == {True, False}
    ]
    assert len(mixed) > len(busy) / 2
    rosters = [{entry.request_id for entry in step.batch} for step in busy]
    changes = [now != then for then, now in pairwise(rosters)]
    assert sum(changes) > len(changes) / 2


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("prompt", {"prompts": [[]]}),
        ("prompt", {"prompts": [[10**6]]}),
        ("prompt", {"prompts": [[5] * 4000]}),
        ("prompts", {"prompts": [{"text": "a"}]}),
        ("prompts", {"prompts": None}),
        ("sampling_params", {"prompts": ["a"], "sampling_params": [{"max_tokens": 2}]}),
        ("sampling_params", {"prompts": ["a", "b"], "sampling_params": [GREEDY]}),
        ("priority", {"prompts": ["a"], "priority": [1]}),
    ],
)
def test_a_bad_request_is_refused_by_field_and_leaves_nothing(
    llm: LLM, field: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert llm.generate(CAPITAL, GREEDY)[0].outputs[0].text.startswith(" Paris")


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "bfloat16", "block_size": 32},
        {"executor": "reference"},
        {"enable_chunked_prefill": False, "enable_prefix_caching": False},
    ],
    ids=repr,
)
def test_every_precision_and_executor_knows_the_capital(
    model_path: Path, options: dict[str, object]
) -> None:
    llm = LLM(str(model_path), num_kv_blocks=32, **options)
    params = SamplingParams(temperature=0, max_tokens=3)
    assert [out.outputs[0].text for out in llm.generate([CAPITAL] * 2, params)] == [" Paris.\n"] * 2


def test_an_option_that_does_not_exist_is_named(model_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size: is no option; there are model"):
        LLM(str(model_path), tensor_parallel_size=4)


def test_generate_prints_as_it_comes(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["generate", CAPITAL, "--model", str(model_path), "--max-tokens", "3"])
    assert capsys.readouterr().out == " Paris.\n\n"
    chat = ["generate", "What is the capital of Japan?", "--chat", "--stop", " Tokyo"]
    main([*chat, "--model", str(model_path), "--num-kv-blocks", "50"])
    assert capsys.readouterr().out == "The capital of Japan is\n"


def test_a_recording_of_the_real_model_replays_to_the_same_plans(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording.jsonl"
    llm = LLM(
        str(model_path),
        num_kv_blocks=12,
        max_num_seqs=8,
        preemption_mode="swap",
        swap_space=0.05,
        watermark=0.0,
        reserve_full_prompt=False,
        record=str(path),
    )
    seen: list[StepRecord] = []
    llm.add_observer(lambda step, _: seen.extend([step] if step else []))
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = llm.generate([f"Story {i}: once upon" for i in range(8)], params, use_tqdm=False)
    assert all(len(output.outputs[0].token_ids) == 24 for output in outputs)
    assert sum(step.swapped_out_blocks for step in seen) > 0
    del llm  # ends the recording
    gc.collect()
    assert run_replay([path], out=sys.stdout) == 0
    assert capsys.readouterr().out == f"identical, {len(seen)} steps\n"
    assert run_replay([path], settings=["max_num_seqs=4"], out=sys.stdout) == 1
