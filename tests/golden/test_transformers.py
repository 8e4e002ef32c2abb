"""The default model, as GGUF and as safetensors: tokens and logits against Transformers'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden.conftest import Oracle
from headway import LLM, SamplingParams
from headway.core.plan import Chunk, Sample, StepPlan
from headway.models.weights import open_model
from tiny_executors import pytorch, reference

NUM_TOKENS = 64
TEXT = """\
The scheduler decides at every step who runs and how many tokens each request gets. In 1969 three
people flew to the Moon; two of them walked on it. def fib(n): return n if n < 2 else fib(n - 1) +
fib(n - 2) # slow. Der Himmel ist blau, und das Meer auch. Le café est fermé le lundi. 東京は日本の
首都です。 3.14159 26535; SELECT name FROM users WHERE id = 42; The quick brown fox jumps
over the lazy dog, and the dog, being lazy, does not mind at all. """
STARTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def quicksort(items):\n",
    "Q: What is 17 + 25?\nA:",
    "At sea level, water boils at",
)


def prompts(llm: LLM) -> list[list[int]]:
    """Twenty, of 5 to 600 tokens."""
    long = llm.tokenizer.encode(TEXT * 8)
    lengths = [24, 31, 32, 33, 47, 64, 100, 129, 160, 200, 256, 257, 333, 480, 600]
    return [llm.tokenizer.encode(text) for text in STARTS] + [
        long[i : i + length] for i, length in enumerate(lengths)
    ]


@pytest.fixture(params=["model_path", "safetensors_path"])
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def its_oracle(path: Path, request: pytest.FixtureRequest) -> Oracle:
    return request.getfixturevalue("oracle" if path.is_file() else "safetensors_oracle")


def test_greedy_tokens_are_those_of_transformers(
    path: Path, its_oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM(str(path), dtype="float32", num_kv_blocks=1200)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    asked = prompts(llm)
    assert len(asked) == 20
    assert (min(map(len, asked)), max(map(len, asked))) == (5, 600)
    if path.is_dir():
        asked = asked[::4]  # what differs is the file alone
    outputs = llm.generate(asked, params, use_tqdm=False)
    differing = its_oracle.check_greedy(asked, [output.outputs[0].token_ids for output in outputs])
    with capsys.disabled():
        print(f"\n{differing} of {len(asked)} prompts differ, each first at a near tie")


def test_logits_of_reference_torch_and_transformers_agree(path: Path, its_oracle: Oracle) -> None:
    model = open_model(path)
    weights = model.load_weights()
    tokens = tuple((i * 7919) % model.spec.vocab_size for i in range(40))
    sample = Sample(SamplingParams(temperature=0), 0, 0)
    # The prompt in two chunks, on blocks out of order.
    table = (5, 2, 7)
    first = StepPlan(1, (Chunk("r", 0, tokens[:23], table, sample),))
    second = StepPlan(2, (Chunk("r", 23, tokens[23:], table, sample),))
    in_numpy = reference(model.spec, weights, num_blocks=8, block_size=16)
    in_torch = pytorch(model.spec, weights, num_blocks=8, block_size=16)
    for plan, end in ((first, 23), (second, 40)):
        ours, theirs = in_numpy.logits(plan)[0], in_torch.logits(plan)[0]
        assert np.abs(ours - theirs).max() < 1e-3
        assert np.abs(theirs - its_oracle.logits(list(tokens[:end]))[0].numpy()).max() < 1e-3
