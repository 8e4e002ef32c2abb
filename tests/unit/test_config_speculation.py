"""The options of speculative decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.config import EngineArgs, EngineConfig, ModelLimits, resolve
from headway.errors import InvalidConfig

MODEL = ModelLimits(
    max_position=8192,
    num_parameters=100_000_000,
    kv_elements_per_token=10_000,
    available_bytes=2 * 10**9,
)
DRAFT = replace(MODEL, num_parameters=10_000_000, kv_elements_per_token=1_000)


def resolved(draft: ModelLimits | None = None, **options: Any) -> EngineConfig:
    return resolve(EngineArgs.of(options), MODEL, device="cpu", draft=draft)


def test_without_the_options_there_are_no_drafts() -> None:
    config = resolved()
    assert (config.num_speculative_tokens, config.speculative_model) == (0, None)


def test_plans_overlap_unless_it_is_said_otherwise() -> None:
    assert resolved().async_scheduling
    assert not resolve(EngineArgs(async_scheduling=False), MODEL, device="cpu").async_scheduling


def test_prompt_lookup_has_defaults_that_give_way_to_what_is_asked() -> None:
    for options, expected in (
        ({}, (2, 4)),
        ({"prompt_lookup_min": 3}, (3, 4)),
        ({"prompt_lookup_min": 6}, (6, 6)),
        ({"prompt_lookup_max": 1}, (1, 1)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 9}, (1, 9)),
    ):
        config = resolved(speculative_ngram=5, **options)
        assert config.num_speculative_tokens == 5
        assert (config.prompt_lookup_min, config.prompt_lookup_max) == expected


def test_a_draft_model_has_four_drafts_unless_asked_for_others() -> None:
    config = resolved(DRAFT, speculative_model=Path("draft.gguf"))
    assert (config.speculative_model, config.num_speculative_tokens) == ("draft.gguf", 4)
    config = resolved(DRAFT, speculative_model="draft.gguf", num_speculative_tokens=7)
    assert config.num_speculative_tokens == 7


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("speculative_model", {"speculative_ngram": 3, "speculative_model": "m"}),
        ("num_speculative_tokens", {"num_speculative_tokens": 3}),
        ("num_speculative_tokens", {"speculative_ngram": 3, "num_speculative_tokens": 3}),
        ("num_speculative_tokens", {"speculative_model": "m", "num_speculative_tokens": 0}),
        ("speculative_ngram", {"speculative_ngram": 0}),
        ("speculative_ngram", {"speculative_ngram": True}),
        ("prompt_lookup_min", {"prompt_lookup_min": 3}),
        ("prompt_lookup_max", {"speculative_model": "m", "prompt_lookup_max": 3}),
        ("prompt_lookup_min", {"speculative_ngram": 3, "prompt_lookup_min": 0}),
        (
            "prompt_lookup_min",
            {"speculative_ngram": 3, "prompt_lookup_min": 5, "prompt_lookup_max": 4},
        ),
    ],
)
def test_what_contradicts_or_would_do_nothing_is_refused_by_name(
    field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolved(DRAFT, **options)
    assert caught.value.field == field


def test_a_draft_models_weights_and_kv_come_out_of_the_same_memory() -> None:
    without, config = resolved(), resolved(DRAFT, speculative_model="m")
    spare = MODEL.available_bytes - 4 * (100_000_000 + 10_000_000)
    assert config.num_kv_blocks == int(0.4 * spare) // (16 * 4 * 11_000)
    assert config.num_kv_blocks < without.num_kv_blocks
    assert config.kv_cache_bytes == config.num_kv_blocks * 16 * 4 * 11_000
    most = spare // (16 * 4 * 11_000)
    assert resolved(DRAFT, speculative_model="m", num_kv_blocks=most).num_kv_blocks == most
    with pytest.raises(InvalidConfig, match=r"num_kv_blocks: .* the weights take 440,000,000"):
        resolved(DRAFT, speculative_model="m", num_kv_blocks=most + 1)


def test_swap_space_is_for_the_models_own_kv() -> None:
    config = resolved(DRAFT, speculative_model="m", preemption_mode="swap", swap_space=0.5)
    assert config.num_swap_blocks == 2**29 // (16 * 4 * 10_000)
