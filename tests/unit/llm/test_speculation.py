"""How an engine that speculates is composed, and how it runs."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from headway.config import EngineArgs
from headway.core.params import SamplingParams
from headway.engine.outputs import NewRequest
from headway.errors import InvalidConfig
from headway.llm import build
from headway.runtime.reference import ReferenceExecutor
from tiny import TINY
from tiny_models import Model, use_models

MODELS = {
    "big": Model(),
    "small": Model(replace(TINY, attention=TINY.attention[:1]), seed=1),
    "other": Model(replace(TINY, vocab_size=60)),
}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    use_models(monkeypatch, MODELS)


def engine(**options: Any) -> build.Engine:
    sizes = {"num_kv_blocks": 20, "max_num_seqs": 4, "seed": 1}
    return build.build_engine(
        EngineArgs.of({"model": "big", "executor": "reference", **sizes, **options})
    )


def run(engine: build.Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for count in range(6):
        params = SamplingParams(max_tokens=20, temperature=0.5 * (count % 2), ignore_eos=True)
        engine.core.add([NewRequest(f"r{count}", [5, 6, count, 5, 6], params)])
    while engine.core.has_work:
        for delta in engine.core.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    engine.core.close()
    return tokens


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"speculative_ngram": 3}, {"speculative_model": "small"}], ids=str
)
def test_every_way_to_run_gives_the_same_tokens_and_leaves_no_thread(
    options: dict[str, Any], overlap: bool
) -> None:
    threads = set(threading.enumerate())
    expected = run(engine(async_scheduling=False))
    assert run(engine(async_scheduling=overlap, **options)) == expected
    assert set(threading.enumerate()) <= threads


def test_a_draft_model_runs_in_the_thread_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    submit = ReferenceExecutor.submit

    def noted(self: ReferenceExecutor, plan: Any) -> Any:
        seen.add((self._spec.num_layers, threading.current_thread().name))
        return submit(self, plan)

    monkeypatch.setattr(ReferenceExecutor, "submit", noted)
    run(engine(speculative_model="small", async_scheduling=True))
    assert {layers for layers, _ in seen} == {1, 2}
    assert len({name for _, name in seen}) == 1
    assert threading.current_thread().name not in {name for _, name in seen}


def test_another_vocabulary_is_refused_with_both_sizes() -> None:
    with pytest.raises(InvalidConfig, match=r"speculative_model: other .* 60 tokens, .* big .* 61"):
        engine(speculative_model="other")


def test_what_is_wrong_with_the_draft_model_or_the_options_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Model, "load_weights", None)
    with pytest.raises(InvalidConfig, match="speculative_model: no such model: missing"):
        engine(speculative_model="missing")
    monkeypatch.setattr(build, "open_model", None)
    with pytest.raises(InvalidConfig, match="speculative_model: and speculative_ngram exclude"):
        engine(speculative_model="missing", speculative_ngram=2)


def test_the_banner_says_who_drafts() -> None:
    assert "Drafts" not in engine().banner()
    assert (
        "Drafts     by small, up to 4 tokens a step" in engine(speculative_model="small").banner()
    )
    banner = engine(speculative_ngram=3, prompt_lookup_max=5).banner()
    assert "the last 2 to 5 tokens up in prompt and output, up to 3 tokens a step" in banner
