"""How an engine is composed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headway.config import EngineArgs, ModelLimits, resolve
from headway.errors import InvalidRequest
from headway.llm.build import Engine, _chat_template


def test_a_chat_template_that_cannot_be_used_is_no_obstacle_until_it_is_asked_for() -> None:
    model: Any = SimpleNamespace(chat_template="{{ messages | nonsense }}")
    tokenizer: Any = SimpleNamespace(bos_token="<s>", eos_token="</s>")
    said: list[str] = []
    template = _chat_template(model, tokenizer, said.append)
    assert template is not None
    assert "nonsense" in said[0]
    with pytest.raises(InvalidRequest, match=r"messages: .* not usable: .*nonsense"):
        template.render([{"role": "user", "content": "hi"}])


def test_the_banner_says_that_the_order_is_strict_and_how_requests_are_preempted() -> None:
    limits = ModelLimits(
        max_position=64, num_parameters=1, kv_elements_per_token=1, available_bytes=2**30
    )
    model = SimpleNamespace(
        name="m", spec=SimpleNamespace(architecture="llama"), num_parameters=1e6
    )

    def banner(**options: Any) -> str:
        config = resolve(EngineArgs(**options), limits, device="cpu")
        return Engine.banner(SimpleNamespace(config=config, model=model))  # type: ignore[arg-type]

    plain = banner(scheduling_policy="priority")
    assert "Scheduler  priority; " in plain
    assert "preemption by" not in plain
    assert "Scheduler  priority, strict; " in banner(
        scheduling_policy="priority", priority_aging=0.0
    )
    blocks = int(0.0001 * 2**30) // (16 * 4)
    assert f"preemption by swap, {blocks:,} swap blocks" in banner(
        preemption_mode="swap", swap_space=0.0001
    )
