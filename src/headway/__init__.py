"""Headway: an LLM inference and serving engine whose heart is its request scheduler.

    from headway import LLM, SamplingParams

    llm = LLM()
    outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0))
    print(outputs[0].outputs[0].text)

Names are imported when they are first used, so that `headway --help` needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.params import SamplingParams
    from headway.core.structured import StructuredOutputs
    from headway.engine.outputs import CompletionOutput, RequestOutput
    from headway.llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "LLM": "headway.llm",
    "SamplingParams": "headway.core.params",
    "StructuredOutputs": "headway.core.structured",
    "RequestOutput": "headway.engine.outputs",
    "CompletionOutput": "headway.engine.outputs",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
