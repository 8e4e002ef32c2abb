"""How an engine is composed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from headway.config import EngineArgs, ModelLimits, resolve
from headway.engine.exactness import Exactness
from headway.llm.banner import banner
from headway.llm.executors import make_executor
from tiny import TINY, tiny_weights
from tiny_executors import one_thread


def test_the_banner_says_that_the_order_is_strict_and_how_requests_are_preempted() -> None:
    limits = ModelLimits(
        max_position=64, num_parameters=1, kv_elements_per_token=1, available_bytes=2**30
    )
    model: Any = SimpleNamespace(
        name="m", spec=SimpleNamespace(architecture="llama"), num_parameters=1e6
    )

    def said(**options: Any) -> str:
        config = resolve(EngineArgs(executor="eager", **options), limits, device="cpu")
        return banner(config, model, Exactness(False, "of sorts"))

    plain = said(scheduling_policy="priority")
    assert "Scheduler  priority; " in plain
    assert "preemption by" not in plain
    assert "Exactness  no promise: of sorts" in plain
    assert "Scheduler  priority, strict; " in said(scheduling_policy="priority", priority_aging=0.0)
    blocks = int(0.0001 * 2**30) // (16 * 4)
    assert f"preemption by swap, {blocks:,} swap blocks" in said(
        preemption_mode="swap", swap_space=0.0001
    )


def test_the_number_of_threads_is_set_when_asked_for() -> None:
    model: Any = SimpleNamespace(spec=TINY, load_weights=tiny_weights)
    config: Any = SimpleNamespace(
        executor="torch",
        device="cpu",
        kernels=None,
        dtype="float32",
        kv_cache_dtype="float32",
        num_kv_blocks=2,
        block_size=4,
        num_swap_blocks=0,
        num_threads=2,
    )
    with one_thread():
        make_executor(config, model)
        assert torch.get_num_threads() == 2
