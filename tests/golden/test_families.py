"""Every family with small random weights against Transformers, and as GGUF against itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from golden.conftest import Oracle
from golden.random_models import (
    MODELS,
    NOT_IN_GGUF,
    VOCAB,
    save_directory,
    save_gguf,
    save_in_old_form,
)
from headway.core.params import SamplingParams
from headway.core.plan import Chunk, Sample, StepPlan
from headway.models.spec import DecoderWeights
from headway.models.weights import ModelFile, open_model
from tiny_executors import pytorch, reference

GREEDY = SamplingParams(temperature=0)
TABLE = (5, 2, 7, 0, 3, 9, 1, 8)
BLOCK_SIZE = 16
NUM_TOKENS = 48
MOST_DIFFERENCE = 1e-4
EXECUTORS = {"reference": reference, "torch": pytorch}


@pytest.fixture(scope="module", params=MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(request.param, tmp_path_factory.mktemp("models") / request.param)


def prompt(length: int = 60) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(VOCAB) for _ in range(length)]


def chunk(start: int, tokens: list[int]) -> Chunk:
    return Chunk("r", start, tuple(tokens), TABLE, Sample(GREEDY, 0, 0))


def make(name: str, model: ModelFile) -> Any:
    return EXECUTORS[name](model.spec, model.load_weights(), num_blocks=10, block_size=BLOCK_SIZE)


def in_two_chunks(executor: Any, tokens: list[int]) -> np.ndarray:
    """[2, vocab]: after each of two chunks."""
    plans = (chunk(0, tokens[:23]), chunk(23, tokens[23:]))
    return np.concatenate(
        [executor.logits(StepPlan(step, (plan,))) for step, plan in enumerate(plans)]
    )


@pytest.mark.parametrize("name", EXECUTORS)
def test_logits_are_those_of_transformers(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = prompt()
    ours = in_two_chunks(make(name, open_model(directory)), tokens)
    theirs = Oracle(directory).logits(tokens, len(tokens)).numpy()[[22, -1]]
    assert np.ptp(theirs) > 3  # the logits are no noise
    difference = float(np.abs(ours - theirs).max())
    with capsys.disabled():
        print(f"\n{directory.name}, {name}: logits differ by at most {difference:.1e}")
    assert difference < MOST_DIFFERENCE


@pytest.mark.parametrize("name", EXECUTORS)
def test_greedy_tokens_are_those_of_transformers(directory: Path, name: str) -> None:
    executor = make(name, open_model(directory))
    asked = prompt()
    output: list[int] = []
    tokens, start = asked, 0
    for step in range(NUM_TOKENS):
        (token,) = executor.collect(
            executor.submit(StepPlan(step, (chunk(start, tokens),)))
        ).token_ids
        assert token is not None
        start, tokens = start + len(tokens), [token]
        output.append(token)
    assert len(set(output)) > 8
    assert Oracle(directory).first_difference(asked, output) is None


def test_the_prompt_reaches_past_windows_and_scaled_contexts(directory: Path) -> None:
    """Without windows and scaling the models would say something else."""
    model = open_model(directory)
    windows = {kind.window for kind in model.spec.attention} - {None}
    expected = {"mistral": {8}, "qwen2-window": {8}, "gemma3": {8}}
    assert windows == expected.get(directory.name, set())
    assert all(window < len(prompt()) / 4 for window in windows)


def test_the_old_form_of_its_config_says_the_same(directory: Path, tmp_path: Path) -> None:
    old = save_in_old_form(directory, tmp_path / "old")
    assert open_model(old).spec == open_model(directory).spec
    # So does Transformers take it.
    tokens = prompt()
    assert torch.equal(Oracle(old).logits(tokens), Oracle(directory).logits(tokens))


def equal_weights(one: DecoderWeights, other: DecoderWeights) -> bool:
    pairs = [(one.embedding, other.embedding), (one.head, other.head)]
    pairs.append((one.final_norm, other.final_norm))
    for ours, theirs in zip(one.layers, other.layers, strict=True):
        for field in ours.__slots__:
            if getattr(ours, field) is None:
                assert getattr(theirs, field) is None
            else:
                pairs.append((getattr(ours, field), getattr(theirs, field)))
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_IN_GGUF])
def test_as_gguf_it_is_the_same_model(tmp_path: Path, name: str) -> None:
    directory = save_directory(name, tmp_path / name)
    model = open_model(directory)
    twin = open_model(save_gguf(name, directory, tmp_path / "twin.gguf"))
    assert twin.num_parameters == model.num_parameters
    assert equal_weights(twin.load_weights(), model.load_weights())
    logits = [in_two_chunks(make("reference", one), prompt()) for one in (model, twin)]
    # The numbers in GGUF's metadata and its rope frequencies are float32.
    assert np.abs(logits[0] - logits[1]).max() < MOST_DIFFERENCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_directory_says_its_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    name = "llama" if dtype == torch.float32 else "qwen3"
    model = open_model(save_directory(name, tmp_path / name))
    assert model.precision == {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
