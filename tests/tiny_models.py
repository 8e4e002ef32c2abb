"""Stand-ins for models on disk, so that whole engines are composed of tiny ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ModelError
from headway.llm import build
from headway.models.spec import DecoderSpec, DecoderWeights
from tiny import TINY, tiny_weights

__all__ = ["Model", "use_models"]


class Numbers:
    """A tokenizer that is never asked for what a text means."""

    eos_token_ids = (0,)

    def token_bytes(self, token_id: int) -> bytes:
        return f"{token_id} ".encode()

    def is_special(self, token_id: int) -> bool:
        return False


@dataclass(frozen=True)
class Model:
    """Stands for a file."""

    spec: DecoderSpec = TINY
    seed: int = 0
    name: str = ""
    num_parameters: int = 1000
    num_channels: int = 0
    size_bytes: int = 4000
    chat_template: None = None
    sampling_defaults: dict[str, Any] = field(default_factory=dict)

    def tokenizer(self) -> Numbers:
        return Numbers()

    def load_weights(self) -> DecoderWeights:
        return tiny_weights(self.spec, seed=self.seed)


def use_models(monkeypatch: pytest.MonkeyPatch, models: Mapping[str, Model]) -> None:
    """Engines find these, and no others."""

    def opened(path: Path) -> Model:
        if path.name not in models:
            raise ModelError(f"no such model: {path.name}")
        return models[path.name]

    monkeypatch.setattr(build, "resolve_model", lambda name, **options: Path(name))
    monkeypatch.setattr(build, "open_model", opened)
