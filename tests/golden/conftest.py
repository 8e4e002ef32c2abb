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
    def logits(self, tokens: list[int], last: int = 1) -> torch.Tensor:
        """[last, vocab]: after each of the `last` tokens."""
        return self._model(torch.tensor([tokens]), logits_to_keep=last).logits[0]

    def first_difference(self, prompt: list[int], output: list[int]) -> int | None:
        """Where `output` leaves the greedy continuation of `prompt`; None: nowhere.

        If every token is the likeliest one after those before it, then it is what greedy
        decoding gives, token by token; so one pass over all of them tells.
        """
        best = self.logits(prompt + output[:-1], len(output)).argmax(dim=-1).tolist()
        return next((i for i, token in enumerate(output) if token != best[i]), None)

    def is_near_tie(self, tokens: list[int], one: int, other: int) -> bool:
        """Whether these two are the likeliest tokens to come next, and nearly equally so."""
        top = self.logits(tokens)[0].topk(2)
        gap = float(top.values[0] - top.values[1])
        return {one, other} == set(top.indices.tolist()) and gap < NEAR_TIE


@pytest.fixture(scope="session")
def oracle(model_path: Path) -> Oracle:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return Oracle(model_path)
