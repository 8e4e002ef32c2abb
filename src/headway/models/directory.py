"""What a Hugging Face directory says beside its weights: configuration, template, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.core.params import SamplingParams
from headway.errors import InvalidRequest, ModelError, UnsupportedModel
from headway.models.fields import Fields, shown
from headway.models.json_file import read_json, read_text
from headway.models.safetensors import (
    INDEX_NAME,
    SINGLE_NAME,
    SafetensorsFile,
    ShardedSafetensors,
)
from headway.models.tensors import TensorFile

__all__ = ["Directory", "holds_safetensors", "open_directory"]

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The parts of a directory with `config.json` and safetensors, read and well formed."""

    config: Mapping[str, object]
    tensors: TensorFile
    chat_template: str | None
    sampling_defaults: Mapping[str, float | int]


def holds_safetensors(path: Path) -> bool:
    return any(path.glob("*.safetensors")) or (path / INDEX_NAME).exists()


def open_directory(path: Path) -> Directory:
    """Raises `ModelError` naming the file and the field, `UnsupportedModel` for what sound
    files hold that is not read here."""
    config_path = path / "config.json"
    if not config_path.exists():
        raise ModelError(f"{path}: holds safetensors and no config.json, which is needed too")
    config = read_json(config_path)
    generation: Mapping[str, object] = {}
    if (path / "generation_config.json").exists():
        generation = read_json(path / "generation_config.json")
    return Directory(
        config=MappingProxyType(config),
        tensors=_open_tensors(path),
        chat_template=_chat_template(path),
        sampling_defaults=_sampling_defaults(path / "generation_config.json", generation),
    )


def _open_tensors(path: Path) -> TensorFile:
    if (path / SINGLE_NAME).exists():
        return SafetensorsFile.open(path / SINGLE_NAME)
    if (path / INDEX_NAME).exists():
        return ShardedSafetensors.open(path / INDEX_NAME)
    names = ", ".join(sorted(file.name for file in path.glob("*.safetensors"))[:4])
    raise ModelError(
        f"{path}: holds neither {SINGLE_NAME} nor {INDEX_NAME}, only {names}; files of other "
        "names are not read"
    )


def _chat_template(path: Path) -> str | None:
    """From where Transformers looks for it, newest place first."""
    if (path / "chat_template.jinja").exists():
        return read_text(path / "chat_template.jinja")
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (path / name).exists():
            continue
        template = read_json(path / name).get("chat_template")
        if isinstance(template, list):
            template = _named_default(path / name, template)
        if isinstance(template, str):
            return template
        if template is not None:
            raise ModelError(f"{path / name}: chat_template: is {shown(template)}, not a string")
    return None


def _named_default(path: Path, templates: list[object]) -> object:
    for template in templates:
        if isinstance(template, dict) and template.get("name") == "default":
            return template.get("template")
    raise UnsupportedModel(f"{path}: chat_template: of its templates none is named 'default'")


def _sampling_defaults(path: Path, generation: Mapping[str, object]) -> Mapping[str, float | int]:
    """Names are those of `SamplingParams`."""
    defaults: dict[str, Any] = {
        name: generation[name] for name in _DEFAULTS if generation.get(name) is not None
    }
    try:
        SamplingParams(**defaults)  # what no request may ask for is no default either
        if not Fields(generation).flag("do_sample", True):
            defaults["temperature"] = 0
    except (InvalidRequest, ModelError) as error:
        raise ModelError(f"{path}: {error!s:.200}") from error
    return MappingProxyType(defaults)
