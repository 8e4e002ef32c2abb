"""What a recipe sets, and what wins over it."""

from __future__ import annotations

from typing import Any

import pytest

from headway.config import EngineArgs, EngineConfig, ModelLimits, resolve
from headway.config.recipes import DEFAULTS, RECIPES
from headway.errors import InvalidConfig

MODEL = ModelLimits(
    max_position=8192,
    num_parameters=135_000_000,
    kv_elements_per_token=11_520,
    available_bytes=20 << 30,
)


def resolved(**options: Any) -> EngineConfig:
    return resolve(EngineArgs.of(options), MODEL, device="cpu")


def values(config: EngineConfig) -> list[int | bool | None]:
    """In the order of the guide's lists."""
    return [getattr(config, name) for name in DEFAULTS.options()]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("chat", [8192, 256, 32, True, 0, 512]),
        ("long-document", [4096, 64, 16, True, 1024, 64]),
        ("mixed", [8192, 128, 16, True, 512, 256]),
        (None, [256, 128, 16, True, 0, None]),
    ],
)
def test_a_recipe_sets_its_values_and_without_one_the_defaults_hold(
    recipe: str | None, expected: list[int | bool | None]
) -> None:
    config = resolved(recipe=recipe)
    assert values(config) == expected
    assert config.recipe == recipe


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_batched_tokens", 300),
        ("max_num_seqs", DEFAULTS.max_num_seqs),
        ("block_size", DEFAULTS.block_size),
        ("enable_prefix_caching", False),
        ("long_prefill_token_threshold", 100),
        ("max_num_queued_reqs", 9),
    ],
)
def test_what_is_asked_for_wins_over_the_recipe_also_when_it_is_the_default(
    name: str, value: int | bool
) -> None:
    asked = EngineArgs(recipe="chat", **{name: value})
    others = RECIPES["chat"].options()
    assert asked.tuning.options() == {**others, name: value}
    config = resolved(recipe="chat", **{name: value})
    assert {item: getattr(config, item) for item in others} == {**others, name: value}


def test_a_threshold_of_zero_wins_over_the_recipe() -> None:
    config = resolved(recipe="mixed", long_prefill_token_threshold=0)
    assert config.long_prefill_token_threshold == 0


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"recipe": "fast"}, "recipe", "chat, long-document, mixed"),
        (
            {"recipe": "mixed", "enable_chunked_prefill": False},
            "long_prefill_token_threshold",
            r"512 \(recipe mixed\) needs enable_chunked_prefill; 0 does not",
        ),
        (
            {"recipe": "chat", "max_num_batched_tokens": 100},
            "max_num_batched_tokens",
            r"100 is less than max_num_seqs, 256 \(recipe chat\)",
        ),
        (
            {"recipe": "long-document", "max_num_seqs": 5000},
            "max_num_batched_tokens",
            r"4096 \(recipe long-document\) is less than max_num_seqs, 5000:",
        ),
    ],
)
def test_what_does_not_go_with_a_recipe_is_refused_and_says_whose_value_it_is(
    options: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words) as caught:
        resolved(**options)
    assert caught.value.field == field
