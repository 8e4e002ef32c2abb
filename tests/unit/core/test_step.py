from __future__ import annotations

from types import SimpleNamespace

from headway.core.params import SamplingParams
from headway.core.request import Request
from headway.core.step import Step


def test_what_is_taken_back_is_in_no_figure() -> None:
    request = Request("a", list(range(10)), SamplingParams(), arrival_s=0.0, seed=0)
    request.max_total_tokens = 20
    request.held = SimpleNamespace(table=(0,))  # type: ignore[assignment]
    request.num_computed_once = 4
    step = Step(1, 0.0, None, budget=64, longest_chunk=64)
    step.grant(request, 10)
    assert (step.prompt_tokens, step.recomputed_tokens, step.budget_left) == (6, 4, 54)
    step.take_back(request)
    assert (step.prompt_tokens, step.recomputed_tokens, step.budget_left) == (0, 0, 64)
