"""Transformers as the oracle, in float32: the same directory, or the same GGUF file dequantised."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import pytest
import torch
import transformers

NEAR_TIE = 1e-4
"""Where the two largest logits are closer than this, either token is right."""


class Oracle:
    def __init__(self, path: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        logging.getLogger("transformers").setLevel(logging.ERROR)
        where: dict[str, Any] = {"pretrained_model_name_or_path": path}
        if path.is_file():
            where = {
                "pretrained_model_name_or_path": path.parent,
                "gguf_file": path.name,
                "quantization_config": transformers.GgufConfig(dequantize=True),
            }
        # It reads the file twice, and the reader takes 10 s where the vocabulary is large.
        reader = functools.lru_cache(gguf.GGUFReader)
        with mock.patch.object(gguf, "GGUFReader", reader):
            self.model = transformers.AutoModelForCausalLM.from_pretrained(
                **where, dtype=torch.float32
            )

    @torch.inference_mode()
    def logits(self, tokens: list[int], last: int = 1) -> torch.Tensor:
        """[last, vocab]: after each of the `last` tokens."""
        return self.model(torch.tensor([tokens]), logits_to_keep=last).logits[0]

    def first_difference(self, prompt: list[int], output: list[int]) -> int | None:
        """Where `output` leaves the greedy continuation of `prompt`; None: nowhere.

        If every token is the likeliest one after those before it, then it is what greedy
        decoding gives, token by token; so one pass over all of them tells.
        """
        best = self.logits(prompt + output[:-1], len(output)).argmax(dim=-1).tolist()
        return next((i for i, token in enumerate(output) if token != best[i]), None)

    def check_greedy(self, prompts: list[list[int]], outputs: list[list[int]]) -> int:
        """How many outputs leave the greedy continuation; fails unless each does at a near tie."""
        differing = 0
        for prompt, output in zip(prompts, outputs, strict=True):
            at = self.first_difference(prompt, output)
            if at is not None:
                differing += 1
                before = prompt + output[:at]
                assert self.is_near_tie(before, output[at], int(self.logits(before).argmax()))
        return differing

    def is_near_tie(self, tokens: list[int], one: int, other: int) -> bool:
        """Whether these two are the likeliest tokens to come next, and nearly equally so."""
        top = self.logits(tokens)[0].topk(2)
        gap = float(top.values[0] - top.values[1])
        return {one, other} == set(top.indices.tolist()) and gap < NEAR_TIE


@pytest.fixture(scope="session")
def oracle(model_path: Path) -> Oracle:
    return Oracle(model_path)


@pytest.fixture(scope="session")
def safetensors_path(
    model_path: Path, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The default model as a Hugging Face directory, in bfloat16 and in shards."""
    path = tmp_path_factory.mktemp("models") / "SmolLM2"
    weights = {
        name: weight.to(torch.bfloat16)
        for name, weight in oracle.model.state_dict().items()
        if name != "lm_head.weight"  # tied
    }
    oracle.model.save_pretrained(path, state_dict=weights, max_shard_size="100MB")
    assert (path / "model.safetensors.index.json").exists()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model_path.parent, gguf_file=model_path.name
    )
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def safetensors_oracle(safetensors_path: Path) -> Oracle:
    return Oracle(safetensors_path)
