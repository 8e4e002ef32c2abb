"""Gemma 3 270M, from its GGUF file, against Transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden.conftest import Oracle
from golden.gemma import gemma_file
from golden.test_transformers import NUM_TOKENS, STARTS, TEXT
from headway import LLM, SamplingParams
from headway.core.plan import Chunk, Sample, StepPlan
from headway.models.weights import open_model
from tiny_executors import pytorch, reference

LENGTHS = (8, 9, 12, 16, 17, 24, 31, 32, 33, 40, 47, 64, 100, 460, 520)


@pytest.fixture(scope="module")
def gemma_path() -> Path:
    return gemma_file()


@pytest.fixture(scope="module")
def gemma_oracle(gemma_path: Path) -> Oracle:
    return Oracle(gemma_path)


def test_what_the_file_says_becomes_the_spec(gemma_path: Path) -> None:
    model = open_model(gemma_path)
    assert (model.spec.architecture, model.precision) == ("gemma3", "Q8_0")
    assert [kind.window for kind in model.spec.attention] == ([512] * 5 + [None]) * 3
    assert model.spec.attention[5].rope.frequencies[1] == pytest.approx(1e6 ** (-1 / 128))
    assert model.spec.attention[0].rope.frequencies[1] == pytest.approx(1e4 ** (-1 / 128))
    assert model.num_parameters == pytest.approx(268e6, rel=0.01)


def test_greedy_tokens_are_those_of_transformers(
    gemma_path: Path, gemma_oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM(str(gemma_path), dtype="float32", num_kv_blocks=1200)
    bos = llm.tokenizer.bos_token_id
    long = llm.tokenizer.encode(TEXT * 8, add_special_tokens=False)
    asked = [llm.tokenizer.encode(text) for text in STARTS]
    asked += [[bos, *long[i : i + length - 1]] for i, length in enumerate(LENGTHS)]
    assert len(asked) == 20
    assert all(prompt[0] == 2 for prompt in asked)
    window = max(kind.window or 0 for kind in open_model(gemma_path).spec.attention)
    assert sum(len(prompt) > window for prompt in asked) == 1
    assert sum(len(prompt) + NUM_TOKENS > window for prompt in asked) == 2
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(asked, params, use_tqdm=False)
    found = [output.outputs[0].token_ids for output in outputs]
    differing = gemma_oracle.check_greedy(asked, found)
    with capsys.disabled():
        print(f"\n{differing} of {len(asked)} prompts differ, each first at a near tie")


def test_logits_of_reference_torch_and_transformers_agree(
    gemma_path: Path, gemma_oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    model = open_model(gemma_path)
    weights = model.load_weights()
    tokens = (2, *((i * 7919) % model.spec.vocab_size for i in range(569)))
    sample = Sample(SamplingParams(temperature=0), 0, 0)
    table = (5, 2, 7, 0, 1, 3, 4, 6, 8)
    plans = [
        StepPlan(step, (Chunk("r", start, tokens[start:end], table, sample),))
        for step, (start, end) in enumerate([(0, 523), (523, 570)])
    ]
    theirs = gemma_oracle.logits(list(tokens), 48)[[0, 47]].numpy()  # after 523 and 570 tokens
    for make in (reference, pytorch):
        executor = make(model.spec, weights, num_blocks=9, block_size=64)
        ours = np.concatenate([executor.logits(plan) for plan in plans])
        difference = float(np.abs(ours - theirs).max())
        with capsys.disabled():
            print(f"\n{make.__name__}: logits differ by at most {difference:.1e}")
        assert difference < 1e-3
