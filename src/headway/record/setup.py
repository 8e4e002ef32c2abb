"""A scheduler and all that belongs to it, from one plain record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.config import RECIPES
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.preemption import Mode
from headway.core.scheduler import Scheduler
from headway.errors import InvalidConfig
from headway.record.policies import make_policy

__all__ = ["SchedulerConfig", "build_scheduler"]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a scheduler's decisions depend on beside its calls; fields as in `EngineConfig`."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    reserve_full_prompt: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    priority_aging: float = 30.0
    preempt_for_priority: bool = True
    fair_weights: dict[str, float] = {}
    fair_input_weight: float = 1.0
    fair_output_weight: float = 2.0
    aging_tokens_per_s: float = 100.0
    default_deadline_s: float = 10.0
    max_skip_ahead: int = 0
    in_batch_prefix_sharing: bool = True
    preemption_mode: Mode = "recompute"
    num_swap_blocks: int = 0
    max_preemptions: int = 8
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def with_overrides(self, overrides: Mapping[str, Any]) -> SchedulerConfig:
        """The same but for these fields; text stands for what it says ("8" is a number). `recipe`
        stands for all the fields of a recipe that are not given too.

        Raises InvalidConfig, naming the field.
        """
        recipe = overrides.get("recipe")
        given = {name: value for name, value in overrides.items() if name != "recipe"}
        if recipe is not None:
            given = {**_recipe(recipe), **given}
        for name in given:
            if name not in self.__struct_fields__:
                known = ", ".join(self.__struct_fields__)
                raise InvalidConfig(name, f"is not in a recording; there are {known}")
        fields = {**msgspec.structs.asdict(self), **given}
        try:
            config = msgspec.convert(fields, SchedulerConfig, strict=False)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at ")
            raise InvalidConfig(path.strip("`").removeprefix("$."), message) from error
        return config if recipe is None else self._fitted(config, given)

    def _fitted(self, config: SchedulerConfig, given: Mapping[str, Any]) -> SchedulerConfig:
        """Blocks of another size are as many as the same memory holds, and no request is longer
        than they are together (rule S10), unless these are given."""
        size, blocks, length = config.block_size, config.num_kv_blocks, config.max_model_len
        if "num_kv_blocks" not in given and size > 0:
            blocks = max(1, self.num_kv_blocks * self.block_size // size)
        if "max_model_len" not in given:
            length = min(length, blocks * size)
        return msgspec.structs.replace(config, num_kv_blocks=blocks, max_model_len=length)


def _recipe(name: str) -> dict[str, Any]:
    """Its fields."""
    if name not in RECIPES:
        raise InvalidConfig("recipe", f"must be one of {', '.join(RECIPES)}, not {name!r}")
    return RECIPES[name].options()


_POLICY_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "priority": {"aging_s": "priority_aging"},
    "fair": {
        "weights": "fair_weights",
        "input_weight": "fair_input_weight",
        "output_weight": "fair_output_weight",
    },
    "sjf": {"aging_tokens_per_s": "aging_tokens_per_s"},
    "lpm": {"aging_tokens_per_s": "aging_tokens_per_s"},
    "deadline": {"default_s": "default_deadline_s"},
}
"""Policy → its argument → the option that it is."""


def build_scheduler(
    config: SchedulerConfig, *, vocab_size: int, max_logprobs: int = -1, hash_secret: int = 0
) -> Scheduler:
    """Composes a scheduler, for serving as for a replay, so that the two cannot drift apart.

    Raises `InvalidConfig` for a policy that there is not.
    """
    options = _POLICY_OPTIONS.get(config.scheduling_policy, {})
    return Scheduler(
        kv=KVCacheManager(
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            watermark=config.watermark,
            reserve_full_prompt=config.reserve_full_prompt,
            hash_secret=hash_secret,
        ),
        policy=make_policy(
            config.scheduling_policy,
            **{name: getattr(config, option) for name, option in options.items()},
        ),
        door=Door(
            max_model_len=config.max_model_len,
            vocab_size=vocab_size,
            max_logprobs=max_logprobs,
            max_num_queued_reqs=config.max_num_queued_reqs,
            max_num_queued_tokens=config.max_num_queued_tokens,
        ),
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_skip_ahead=config.max_skip_ahead,
        in_batch_prefix_sharing=config.in_batch_prefix_sharing,
        preempt_for_priority=config.preempt_for_priority,
        preemption_mode=config.preemption_mode,
        max_preemptions=config.max_preemptions,
        num_swap_slots=config.num_swap_blocks,
    )
