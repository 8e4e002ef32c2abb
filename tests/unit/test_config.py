from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.config import EngineArgs, EngineConfig, ModelLimits, parse_bytes, resolve
from headway.errors import InvalidConfig

GIB = 2**30
MODEL = ModelLimits(
    max_position=8192,
    num_parameters=135_000_000,
    kv_elements_per_token=11_520,
    available_bytes=20 * GIB,
)
BLOCK_BYTES = 16 * 11_520 * 4


def resolved(model: ModelLimits = MODEL, device: str = "cpu", **options: Any) -> EngineConfig:
    return resolve(EngineArgs.of(options), model, device=device)


def test_the_defaults() -> None:
    config = resolved()
    assert (config.dtype, config.kv_cache_dtype) == ("float32", "float32")
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (256, 128)
    assert (config.block_size, config.watermark) == (16, 0.01)
    assert config.enable_prefix_caching
    assert config.enable_chunked_prefill
    assert config.reserve_full_prompt
    assert (config.scheduling_policy, config.long_prefill_token_threshold) == ("fcfs", 0)
    assert (config.max_num_queued_reqs, config.max_num_queued_tokens) == (None, None)
    assert config.max_model_len == 8192


def test_cuda_has_its_own_defaults() -> None:
    config = resolved(device="cuda")
    assert (config.dtype, config.max_num_batched_tokens) == ("bfloat16", 2048)


def test_the_kv_cache_takes_40_percent_of_what_the_weights_leave() -> None:
    config = resolved()
    spare = 20 * GIB - 4 * 135_000_000
    assert config.num_kv_blocks == int(spare * 0.4) // BLOCK_BYTES
    assert config.kv_cache_bytes == config.num_kv_blocks * BLOCK_BYTES <= 0.4 * spare


def test_the_kv_cache_is_no_larger_than_what_can_be_used() -> None:
    config = resolved(max_num_seqs=2, max_model_len=1000)
    assert config.num_kv_blocks == 2 * 63


def test_the_kv_cache_can_be_asked_for_in_bytes_or_blocks() -> None:
    assert resolved(kv_cache_memory="1GiB").num_kv_blocks == GIB // BLOCK_BYTES
    assert resolved(kv_cache_memory=GIB, kv_cache_dtype="bfloat16").num_kv_blocks == (
        2 * GIB // BLOCK_BYTES
    )
    assert resolved(num_kv_blocks=100).kv_cache_bytes == 100 * BLOCK_BYTES


def test_the_model_length_is_what_the_pool_holds_if_that_is_less() -> None:
    assert resolved(num_kv_blocks=10).max_model_len == 160
    assert resolved(max_model_len=100).max_model_len == 100


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"max_model_len": 9000}, ("9000", "8192")),
        ({"max_model_len": 161, "num_kv_blocks": 10}, ("161", "160")),
    ],
)
def test_a_model_length_that_cannot_be_is_refused_with_the_numbers(
    options: dict[str, int], numbers: tuple[str, str]
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolved(**options)
    assert caught.value.field == "max_model_len"
    assert all(number in str(caught.value) for number in numbers)


def test_the_budget_grows_with_a_width_above_its_default_and_without_chunking() -> None:
    assert resolved(max_num_seqs=300).max_num_batched_tokens == 300
    assert resolved(enable_chunked_prefill=False).max_num_batched_tokens == 8192


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_num_batched_tokens", {"max_num_batched_tokens": 100}),
        (
            "max_num_batched_tokens",
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
        ),
        ("max_num_batched_tokens", {"max_num_batched_tokens": 0}),
        ("max_num_seqs", {"max_num_seqs": 0}),
        ("max_num_seqs", {"max_num_seqs": 1.5}),
        ("max_num_seqs", {"max_num_seqs": True}),
        ("block_size", {"block_size": 16.0}),
        ("seed", {"seed": [1]}),
        ("cache_dir", {"cache_dir": 5}),
        ("num_threads", {"num_threads": 100_000}),
        ("num_kv_blocks", {"num_kv_blocks": 10**19}),
        ("kv_cache_memory", {"kv_cache_memory": "100TiB"}),
        ("kv_cache_memory", {"kv_cache_memory": "9" * 400}),
        ("num_threads", {"executor": "reference", "num_threads": 2}),
        ("max_model_len", {"max_model_len": 1}),
        ("block_size", {"block_size": 8}),
        ("num_kv_blocks", {"num_kv_blocks": 0}),
        ("num_kv_blocks", {"num_kv_blocks": 9, "kv_cache_memory": "1GiB"}),
        ("kv_cache_memory", {"kv_cache_memory": "much"}),
        ("kv_cache_memory", {"kv_cache_memory": "1KiB"}),
        ("watermark", {"watermark": 1.0}),
        ("watermark", {"watermark": "none"}),
        ("dtype", {"dtype": "int4"}),
        ("kv_cache_dtype", {"kv_cache_dtype": "fp8"}),
        ("executor", {"executor": "simulated"}),
        ("executor", {"executor": "reference", "dtype": "bfloat16"}),
        ("num_threads", {"num_threads": 0}),
        ("long_prefill_token_threshold", {"long_prefill_token_threshold": -1}),
        (
            "long_prefill_token_threshold",
            {"long_prefill_token_threshold": 64, "enable_chunked_prefill": False},
        ),
        ("max_num_queued_reqs", {"max_num_queued_reqs": 0}),
        ("enable_prefix_caching", {"enable_prefix_caching": "yes"}),
        ("swap_space", {"swap_space": 4}),
        ("swap_space", {"swap_space": 1e6, "preemption_mode": "swap"}),
        ("swap_space", {"swap_space": float("nan"), "preemption_mode": "swap"}),
        ("priority_aging", {"priority_aging": 5.0}),
        ("preempt_for_priority", {"preempt_for_priority": False, "scheduling_policy": "fair"}),
        ("fair_weights", {"fair_weights": "a=2"}),
        ("fair_weights", {"fair_weights": "a=none", "scheduling_policy": "fair"}),
        ("fair_input_weight", {"fair_input_weight": 3.0}),
        ("aging_tokens_per_s", {"aging_tokens_per_s": 1.0, "scheduling_policy": "deadline"}),
        ("default_deadline_s", {"default_deadline_s": 1.0}),
        ("record_content", {"record_content": True}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolved(**options)
    assert caught.value.field == field


def test_an_option_of_a_policy_is_taken_with_it() -> None:
    config = resolved(scheduling_policy="fair", fair_weights="a=2, b=0.5")
    assert config.fair_weights == {"a": 2.0, "b": 0.5}
    assert resolved(scheduling_policy="sjf", aging_tokens_per_s=1.0).aging_tokens_per_s == 1.0


def test_the_swap_space_is_what_was_asked_or_4_gib_or_what_there_is() -> None:
    block_bytes = resolved().kv_cache_bytes // resolved().num_kv_blocks
    asked = resolved(preemption_mode="swap", swap_space=0.001)
    assert asked.num_swap_blocks == int(0.001 * 2**30) // block_bytes
    assert resolved().num_swap_blocks == 0
    some = resolved(preemption_mode="auto").num_swap_blocks * block_bytes
    assert 0 < some <= 4 * 2**30


def test_the_reference_executor_is_for_the_cpu() -> None:
    with pytest.raises(InvalidConfig, match="executor: reference computes in float32 on the CPU"):
        resolved(device="cuda", executor="reference")


def test_a_full_probe_is_for_the_kernels() -> None:
    assert resolved().probe == "fast"
    with pytest.raises(InvalidConfig, match=r"probe: full is for the C\+\+ kernels: "):
        resolved(executor="eager", dtype="float32", probe="full")
    with pytest.raises(InvalidConfig, match="probe: must be one of fast, full, off"):
        resolved(probe="on")


def test_a_kv_cache_beyond_the_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidConfig, match=r"21,474,754,560 bytes, but .* 540,000,000"):
        resolved(kv_cache_memory="20GiB", block_size=16, kv_cache_dtype="float32")


def test_paths_may_be_those_of_pathlib() -> None:
    assert EngineArgs.of({"model": Path("a") / "b.gguf"}).model == str(Path("a") / "b.gguf")


def test_too_little_memory_is_said_with_the_numbers() -> None:
    small = ModelLimits(
        max_position=8192,
        num_parameters=135_000_000,
        kv_elements_per_token=11_520,
        available_bytes=500_000_000,
    )
    with pytest.raises(InvalidConfig, match=r"500,000,000 bytes .* 540,000,000"):
        resolved(small)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2 * GIB),
        ("512 MiB", GIB // 2),
        ("1.5g", 3 * GIB // 2),
        ("1000", 1000),
        ("2GB", 2 * 10**9),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes("x", text) == expected
