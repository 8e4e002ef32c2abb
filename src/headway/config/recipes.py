"""Recipes: options that go together for a kind of load. What each trades is in
docs/guide/recipes.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

__all__ = ["DEFAULTS", "RECIPES", "Recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options that a recipe decides. Fields as in `EngineConfig`."""

    max_num_batched_tokens: int | None
    """None: as the device and the other options ask for."""
    max_num_seqs: int
    block_size: int
    enable_prefix_caching: bool
    long_prefill_token_threshold: int
    max_num_queued_reqs: int | None
    """None: no limit."""

    def options(self) -> dict[str, int | bool | None]:
        """By their names."""
        return asdict(self)


DEFAULTS = Recipe(
    max_num_batched_tokens=None,
    max_num_seqs=128,
    block_size=16,
    enable_prefix_caching=True,
    long_prefill_token_threshold=0,
    max_num_queued_reqs=None,
)
"""What holds without a recipe."""

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "chat": Recipe(
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            block_size=32,
            enable_prefix_caching=True,
            long_prefill_token_threshold=0,
            max_num_queued_reqs=512,
        ),
        "long-document": Recipe(
            max_num_batched_tokens=4096,
            max_num_seqs=64,
            block_size=16,
            enable_prefix_caching=True,
            long_prefill_token_threshold=1024,
            max_num_queued_reqs=64,
        ),
        "mixed": Recipe(
            max_num_batched_tokens=8192,
            max_num_seqs=128,
            block_size=16,
            enable_prefix_caching=True,
            long_prefill_token_threshold=512,
            max_num_queued_reqs=256,
        ),
    }
)
