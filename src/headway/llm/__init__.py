"""The one place that composes everything, and `LLM`, the offline way to use it."""

from __future__ import annotations

from headway.llm.build import Engine, build_engine
from headway.llm.offline import LLM

__all__ = ["LLM", "Engine", "build_engine"]
