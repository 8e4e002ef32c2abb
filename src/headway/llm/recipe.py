"""What a recipe comes to, told to a person."""

from __future__ import annotations

from headway.config import RECIPES, EngineConfig

__all__ = ["measures_prefill", "recipe_lines"]

_STEP_S = 0.5
"""A step that takes longer is too long: everybody who runs waits for it between two tokens."""


def measures_prefill(config: EngineConfig) -> bool:
    """The budget is a recipe's, so that it is to be held against what this machine does."""
    if config.recipe is None:
        return False
    return config.max_num_batched_tokens == RECIPES[config.recipe].max_num_batched_tokens


def recipe_lines(config: EngineConfig, tokens_per_s: float | None) -> list[str]:
    """The recipe, its values, and which of them another option replaced; none without a recipe.

    `tokens_per_s`: measured, of prompts; None: it was not. Where a step of the whole budget takes
    over half a second, a line says so, and with which budget it would not.
    """
    if config.recipe is None:
        return []
    values = RECIPES[config.recipe].options()
    lines = [f"{config.recipe}: {_listed(values)}"]
    in_force = {name: getattr(config, name) for name in values}
    instead = {name: value for name, value in in_force.items() if value != values[name]}
    if instead:
        lines.append(f"given instead: {_listed(instead)}")
    budget = config.max_num_batched_tokens
    if tokens_per_s is not None and budget / tokens_per_s > _STEP_S:
        lines.append(
            f"a step of {budget} prompt tokens would take about {budget / tokens_per_s:.1f} s on "
            f"this machine; {_advice(config, tokens_per_s)}"
        )
    return lines


def _advice(config: EngineConfig, tokens_per_s: float) -> str:
    """A budget in whole blocks, and what stands in the way of one that takes no longer."""
    size, budget = config.block_size, config.max_num_batched_tokens
    fits = int(tokens_per_s * _STEP_S) // size * size
    least, why = config.max_num_seqs, f"max_num_seqs {config.max_num_seqs}"
    if not config.enable_chunked_prefill and config.max_model_len > least:
        least, why = config.max_model_len, f"max_model_len {config.max_model_len} in one piece"
    value = max(fits, -(-least // size) * size)
    if value >= budget:
        return f"{why} allows no smaller one"
    option = f"--max-num-batched-tokens {value}"
    if value == fits:
        return f"{option} would take {value / tokens_per_s:.1f} s"
    return f"{option}, the least for {why}, would take {value / tokens_per_s:.1f} s"


def _listed(options: dict[str, int | bool | None]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in options.items())


def _shown(value: int | bool | None) -> str:
    if value is None:
        return "without limit"
    return str(value) if type(value) is int else "on" if value else "off"
