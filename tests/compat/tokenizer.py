"""A model's vocabulary as `transformers` loads it, which guidellm has count its tokens."""

from __future__ import annotations

import json
from pathlib import Path

from headway.models.weights import open_model
from headway.text.gguf_vocabulary import read_gguf_vocabulary

__all__ = ["save_tokenizer"]


def save_tokenizer(model_path: Path, directory: Path) -> None:
    """Of a GGUF file."""
    model = open_model(model_path)
    read_gguf_vocabulary(model.metadata).backend.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": model.tokenizer().eos_token,
        "chat_template": model.chat_template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
