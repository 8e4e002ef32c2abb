"""Transformers as the oracle: the same GGUF file, dequantised by it, in float32."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import transformers

NEAR_TIE = 1e-4
"""Where the two largest logits are closer than this, either token is right."""


class Oracle:
    def __init__(self, path: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )

    @torch.inference_mode()
    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Output tokens, going on past the end of sequence."""
        output: list[int] = []
        cache, tokens = None, prompt
        for _ in range(num_tokens):
            answer = self._model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
            cache, tokens = answer.past_key_values, [int(answer.logits[0, -1].argmax())]
            output += tokens
        return output

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[vocab], after the last of `tokens`."""
        return self._model(torch.tensor([tokens])).logits[0, -1]

    def excuses(self, prompt: list[int], one: list[int], other: list[int]) -> bool:
        """Whether the first difference of two outputs is at a near tie of those two tokens."""
        at = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        top = self.logits(prompt + one[:at]).topk(2)
        return {one[at], other[at]} == set(top.indices.tolist()) and bool(
            top.values[0] - top.values[1] < NEAR_TIE
        )


@pytest.fixture(scope="session")
def oracle(model_path: Path) -> Oracle:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return Oracle(model_path)
