"""What was asked of an engine, and what that came to.

`EngineArgs` is what a user writes: everything optional. `resolve` makes an `EngineConfig` of it:
complete, consistent, never changed again. Names, units and defaults are vLLM's unless a help
text says otherwise.
"""

from __future__ import annotations

from headway.config.args import DTYPE_BYTES, EngineArgs
from headway.config.parse import parse_bytes
from headway.config.recipes import RECIPES, Recipe
from headway.config.resolved import (
    EngineConfig,
    ModelLimits,
    kv_token_bytes,
    resolve,
    weight_bytes,
)
from headway.config.speculation import resolve_speculation

__all__ = [
    "DTYPE_BYTES",
    "RECIPES",
    "EngineArgs",
    "EngineConfig",
    "ModelLimits",
    "Recipe",
    "kv_token_bytes",
    "parse_bytes",
    "resolve",
    "resolve_speculation",
    "weight_bytes",
]
