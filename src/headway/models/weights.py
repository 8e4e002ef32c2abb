"""A model on disk, whatever its format: all that the rest of the house sees of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from headway.errors import ModelError, ModelNotFound, UnsupportedModel
from headway.models.config_spec import config_family, is_tied, read_config_spec
from headway.models.directory import holds_safetensors, open_directory
from headway.models.families import Layout
from headway.models.fields import shown
from headway.models.gguf import GGUFFile
from headway.models.gguf_spec import gguf_family, read_gguf_spec
from headway.models.loading import check_tensors, load_weights
from headway.models.sizes import MAX_HEAD_DIM
from headway.models.spec import DecoderSpec, DecoderWeights
from headway.models.tensors import TensorFile, num_elements
from headway.text.tokenizer import Tokenizer

__all__ = ["ModelFile", "open_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model whose metadata were read and checked; its weights are still on disk."""

    path: Path
    """Of the GGUF file, or of the directory."""
    name: str
    """The file's name without its suffix, or the directory's."""
    format: Literal["GGUF", "safetensors"]
    spec: DecoderSpec
    metadata: Mapping[str, object]
    """GGUF's fields, or those of `config.json`."""
    chat_template: str | None
    """Its source."""
    sampling_defaults: Mapping[str, float | int]
    """What the model's makers advise, by field of `SamplingParams`; 0 as temperature: greedy."""
    _file: TensorFile
    _layout: Layout

    @property
    def size_bytes(self) -> int:
        """Of the files with the weights."""
        return self._file.size_bytes

    @property
    def num_parameters(self) -> int:
        """All weights; a head that is tied to the embedding has none of its own."""
        return sum(self._elements_by_type().values())

    @property
    def num_channels(self) -> int:
        """Rows of all matrices, each a channel of a product or the vector of a token."""
        matrices = (tensor.shape for tensor in self._file.tensors.values() if len(tensor.shape) > 1)
        return sum(shape[0] for shape in matrices)

    @property
    def precision(self) -> str:
        """The type that holds most of the weights, e.g. `Q4_1` or `BF16`."""
        return self._elements_by_type().most_common(1)[0][0]

    def load_weights(self) -> DecoderWeights:
        """In float32; the layers are loaded as they are taken."""
        return load_weights(self._file, self.spec, self._layout)

    def tokenizer(self) -> Tokenizer:
        """Raises `ModelError` naming the file and what is wrong in it."""
        if self.format == "safetensors":
            return Tokenizer.from_directory(self.path, vocab_size=self.spec.vocab_size)
        try:
            return Tokenizer.from_gguf(self.metadata)
        except ModelError as error:
            raise type(error)(f"{self.path}: {error}") from error

    def _elements_by_type(self) -> Counter[str]:
        elements: Counter[str] = Counter()
        for name, tensor in self._file.tensors.items():
            if not self._layout.is_no_weight(name):
                elements[tensor.type] += num_elements(tensor)
        return elements


def open_model(path: Path | str) -> ModelFile:
    """Opens a GGUF file, a directory with one, or a Hugging Face directory with safetensors.

    Reads headers only, and checks that every tensor is there in its shape and none is left
    over. Of a directory that has both, the safetensors are taken: they and its other files
    are one model, and a GGUF file can be named by its own path.

    Raises:
        ModelNotFound: there is nothing at `path`.
        ModelError: a file is damaged, or a directory holds none or several models.
        UnsupportedModel: the model is of a kind that this version does not run.
    """
    path = Path(path)
    if not path.exists():
        raise ModelNotFound(f"{path}: no such file or directory")
    if path.is_dir():
        return _open_safetensors(path) if holds_safetensors(path) else _open_gguf(_only_gguf(path))
    if path.suffix in (".safetensors", ".bin", ".pt", ".pth", ".json"):
        raise UnsupportedModel(
            f"{path}: what works is a .gguf file, or the directory with config.json and safetensors"
        )
    return _open_gguf(path)


def _open_gguf(path: Path) -> ModelFile:
    file = GGUFFile.open(path)
    try:
        if file.metadata.get("split.count", 1) not in (0, 1):
            raise UnsupportedModel("split.count: models split over several files do not work yet")
        layout = gguf_family(file.metadata).gguf
        assert layout is not None
        file.check_types()
        spec = read_gguf_spec(
            file.metadata, num_tensors=len(file.tensors), rope_divisors=_rope_divisors(file, layout)
        )
        check_tensors(file.tensors, spec, layout, tied=True)
        template = file.metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelError(f"tokenizer.chat_template: is {shown(template)}, not a string")
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from error
    return ModelFile(
        path=path,
        name=path.stem,
        format="GGUF",
        spec=spec,
        metadata=file.metadata,
        chat_template=template,
        sampling_defaults={},
        _file=file,
        _layout=layout,
    )


def _open_safetensors(path: Path) -> ModelFile:
    directory = open_directory(path)
    try:
        layout = config_family(directory.config).hugging_face
        spec = read_config_spec(directory.config, num_tensors=len(directory.tensors.tensors))
    except ModelError as error:
        raise type(error)(f"{path / 'config.json'}: {error}") from error
    try:
        check_tensors(directory.tensors.tensors, spec, layout, tied=is_tied(directory.config))
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from error
    return ModelFile(
        path=path,
        name=path.resolve().name,
        format="safetensors",
        spec=spec,
        metadata=directory.config,
        chat_template=directory.chat_template,
        sampling_defaults=directory.sampling_defaults,
        _file=directory.tensors,
        _layout=layout,
    )


def _only_gguf(directory: Path) -> Path:
    files = sorted(directory.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{directory}: holds several models, name one of them: {names}")
    if pickles := sorted(directory.glob("*.bin")):
        raise UnsupportedModel(
            f"{directory}: {pickles[0].name} is a pickle, which can run code and is never read; "
            "what works is safetensors or GGUF"
        )
    raise ModelError(f"{directory}: holds neither a .gguf file nor safetensors")


def _rope_divisors(file: GGUFFile, layout: Layout) -> tuple[float, ...] | None:
    name = layout.no_weights
    if name is None or name not in file.tensors:
        return None
    shape = file.tensors[name].shape
    if len(shape) != 1 or shape[0] > MAX_HEAD_DIM // 2:
        raise ModelError(f"tensor {name!r}: has shape {list(shape)}, and a row is needed")
    values = file.load(name)
    if not np.all(np.isfinite(values) & (values > 0)):
        raise ModelError(f"tensor {name!r}: must hold finite numbers above 0")
    return tuple(values.tolist())
