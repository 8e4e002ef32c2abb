"""What is said of a recipe at start."""

from __future__ import annotations

from typing import Any

import pytest

from headway import LLM
from headway.clock import VirtualClock
from headway.config import EngineArgs, EngineConfig, ModelLimits, resolve
from headway.llm import build
from headway.llm.recipe import measures_prefill, recipe_lines
from tiny_models import Model, use_models

LIMITS = ModelLimits(
    max_position=2048, num_parameters=1, kv_elements_per_token=1, available_bytes=1 << 30
)
CHAT = (
    "chat: max_num_batched_tokens 8192, max_num_seqs 256, block_size 32, enable_prefix_caching "
    "on, long_prefill_token_threshold 0, max_num_queued_reqs 512"
)


def resolved(**options: Any) -> EngineConfig:
    return resolve(EngineArgs.of({"executor": "eager", **options}), LIMITS, device="cpu")


def test_its_values_are_said_and_which_of_them_an_option_replaced() -> None:
    assert recipe_lines(resolved(), None) == []
    assert recipe_lines(resolved(recipe="chat"), None) == [CHAT]
    given = {"max_num_seqs": 64, "block_size": 32, "enable_prefix_caching": False}
    assert recipe_lines(resolved(recipe="chat", **given), None) == [
        CHAT,
        "given instead: max_num_seqs 64, enable_prefix_caching off",
    ]


@pytest.mark.parametrize(
    ("options", "tokens_per_s", "said"),
    [
        (
            {"recipe": "chat"},
            1650.0,
            "a step of 8192 prompt tokens would take about 5.0 s on this machine; "
            "--max-num-batched-tokens 800 would take 0.5 s",
        ),
        (
            {"recipe": "chat"},
            200.0,
            "a step of 8192 prompt tokens would take about 41.0 s on this machine; "
            "--max-num-batched-tokens 256, the least for max_num_seqs 256, would take 1.3 s",
        ),
        (
            {"recipe": "chat", "max_num_seqs": 60},
            100.0,
            "a step of 8192 prompt tokens would take about 81.9 s on this machine; "
            "--max-num-batched-tokens 64, the least for max_num_seqs 60, would take 0.6 s",
        ),
        (
            {
                "recipe": "long-document",
                "enable_chunked_prefill": False,
                "long_prefill_token_threshold": 0,
            },
            2000.0,
            "a step of 4096 prompt tokens would take about 2.0 s on this machine; "
            "--max-num-batched-tokens 2048, the least for max_model_len 2048 in one piece, "
            "would take 1.0 s",
        ),
        (
            {"recipe": "long-document", "max_num_seqs": 4090},
            2000.0,
            "a step of 4096 prompt tokens would take about 2.0 s on this machine; "
            "max_num_seqs 4090 allows no smaller one",
        ),
    ],
)
def test_a_step_of_over_half_a_second_is_told_with_the_budget_that_would_not_be(
    options: dict[str, Any], tokens_per_s: float, said: str
) -> None:
    config = resolved(**options)
    assert recipe_lines(config, tokens_per_s)[-1] == said
    assert recipe_lines(config, 2.0 * config.max_num_batched_tokens) == recipe_lines(config, None)


def test_only_a_budget_that_is_the_recipes_is_measured() -> None:
    assert measures_prefill(resolved(recipe="mixed"))
    assert not measures_prefill(resolved(recipe="mixed", max_num_batched_tokens=800))
    assert not measures_prefill(resolved(max_num_batched_tokens=8192))


class Ticking(VirtualClock):
    """Every look at it takes a tenth of a second."""

    def now(self) -> float:
        self.advance(0.1)
        return super().now()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    use_models(monkeypatch, {"tiny": Model()})
    return {"model": "tiny", "executor": "reference", "num_kv_blocks": 20}


def test_an_engine_measures_and_says_so_in_its_banner(tiny: dict[str, Any]) -> None:
    asked = EngineArgs.of({**tiny, "recipe": "chat"})
    engine = build.build_engine(asked, clock=Ticking())
    engine.core.close()
    lines = engine.banner().splitlines()
    at = lines.index(f"Recipe     {CHAT}")
    assert lines[at + 1] == (
        "           a step of 8192 prompt tokens would take about 3.2 s on this machine; "
        "--max-num-batched-tokens 1280 would take 0.5 s"
    )
    assert engine.core.state.num_running == 0
    plain = build.build_engine(EngineArgs.of(tiny))
    plain.core.close()
    assert "Recipe" not in plain.banner()


def test_llm_takes_a_recipe_and_tells_its_progress(tiny: dict[str, Any]) -> None:
    said: list[str] = []
    options = {**tiny, "recipe": "mixed", "max_num_batched_tokens": 64, "max_num_seqs": 64}
    llm = LLM(progress=said.append, **options)
    assert (llm.config.block_size, llm.config.long_prefill_token_threshold) == (16, 512)
    assert said[-1].startswith("recipe mixed: max_num_batched_tokens 8192, ")
    assert said[-1].endswith("given instead: max_num_batched_tokens 64, max_num_seqs 64")
