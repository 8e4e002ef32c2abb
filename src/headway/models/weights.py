"""Opens a model file, and turns its tensors into a decoder's float32 weights."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.errors import ModelError, ModelNotFound, UnsupportedModel
from headway.models.families import Family, family_of, read_spec
from headway.models.gguf import GGUFFile
from headway.models.spec import DecoderSpec, DecoderWeights, LayerWeights

__all__ = ["ModelFile", "load_weights", "open_model"]

Array = npt.NDArray[np.float32]

_MAX_THREADS = 8
_MOST_NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model whose metadata were read and checked; its weights are still on disk."""

    path: Path
    name: str
    """The file's name without its suffix."""
    spec: DecoderSpec
    metadata: Mapping[str, object]
    """As in the file; the tokenizer and the chat template are built from it."""
    size_bytes: int
    _file: GGUFFile

    @property
    def num_parameters(self) -> int:
        """All weights; a head that is tied to the embedding has none of its own."""
        return sum(math.prod(tensor.shape) for tensor in self._file.tensors.values())

    def load_weights(self) -> DecoderWeights:
        """See `load_weights`; the file's tensors were checked when it was opened."""
        return load_weights(self._file, self.spec)


def open_model(path: Path | str) -> ModelFile:
    """Opens a GGUF file, or the one GGUF file of a directory.

    Raises:
        ModelNotFound: there is nothing at `path`.
        ModelError: the file is damaged, or a directory holds none or several models.
        UnsupportedModel: the model is of a kind that this version does not run.
    """
    path = _model_file(Path(path))
    file = GGUFFile.open(path)
    try:
        if file.metadata.get("split.count", 1) not in (0, 1):
            raise UnsupportedModel("split.count: models split over several files do not work yet")
        spec = read_spec(file.metadata)
        _check_tensors(file, spec)
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from error
    return ModelFile(path, path.stem, spec, file.metadata, file.size_bytes, file)


def load_weights(file: GGUFFile, spec: DecoderSpec) -> DecoderWeights:
    """Every tensor of the decoder as float32, by canonical name.

    Tensors are dequantised on threads. The head is the embedding itself where the file has
    no `output.weight`. Rows of q and k come out for rotary embedding over halves of a head.

    Raises `ModelError` naming the tensor when one is missing or of another shape than
    `spec` says, `UnsupportedModel` when there is one that the family does not know.
    """
    _check_tensors(file, spec)
    family = family_of(file.metadata)
    threads = max(1, min(_MAX_THREADS, os.cpu_count() or 1))
    with ThreadPoolExecutor(threads, "load-weights") as pool:
        model = {
            key: pool.submit(file.load, name)
            for key, name in family.model_tensors.items()
            if name in file.tensors
        }
        layers = [
            {
                key: pool.submit(_load_layer_tensor, file, spec, family, key, name)
                for key, name in family.layer_tensor_names(layer).items()
            }
            for layer in range(spec.num_layers)
        ]
    embedding = model["embedding"].result()
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(
            LayerWeights(**{key: future.result() for key, future in layer.items()})
            for layer in layers
        ),
        final_norm=model["final_norm"].result(),
        head=model["head"].result() if "head" in model else embedding,
    )


def _model_file(path: Path) -> Path:
    if not path.exists():
        raise ModelNotFound(f"{path}: no such file or directory")
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{path}: holds several models, name one of them: {names}")
    if any(path.glob("*.safetensors")):
        raise UnsupportedModel(f"{path}: safetensors models do not work yet; a .gguf file does")
    raise ModelError(f"{path}: holds no .gguf file")


def _load_layer_tensor(
    file: GGUFFile, spec: DecoderSpec, family: Family, key: str, name: str
) -> Array:
    weight = file.load(name)
    if key not in family.interleaved_rope:
        return weight
    # Row (head, i, half) of the file is row (head, half, i) of the spec.
    pairs = weight.reshape(-1, spec.head_dim // 2, 2, spec.hidden_size)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _check_tensors(file: GGUFFile, spec: DecoderSpec) -> None:
    """Raises unless the file holds exactly the decoder's tensors in the spec's shapes."""
    family = family_of(file.metadata)
    # Taken lazily: a damaged file may announce any number of layers.
    required = family.required_tensors(spec.num_layers)
    absent = (name for name in required if name not in file.tensors)
    if missing := list(islice(absent, _MOST_NAMES_SHOWN)):
        raise ModelError(f"tensors are missing: {', '.join(missing)} (perhaps more)")
    expected = {
        name: _MODEL_SHAPES[key](spec)
        for key, name in family.model_tensors.items()
        if name in file.tensors
    }
    for layer in range(spec.num_layers):
        for key, name in family.layer_tensor_names(layer).items():
            expected[name] = _LAYER_SHAPES[key](spec)
    for name, tensor in file.tensors.items():
        if name not in expected:
            raise UnsupportedModel(
                f"tensor {name!r}: not supported in the {family.architecture} family"
            )
        if tensor.shape != expected[name]:
            raise ModelError(
                f"tensor {name!r}: the metadata make its shape {list(expected[name])}, "
                f"the file has {list(tensor.shape)}"
            )


_Shape = Callable[[DecoderSpec], tuple[int, ...]]

_MODEL_SHAPES: dict[str, _Shape] = {
    "embedding": lambda spec: (spec.vocab_size, spec.hidden_size),
    "final_norm": lambda spec: (spec.hidden_size,),
    "head": lambda spec: (spec.vocab_size, spec.hidden_size),
}
_LAYER_SHAPES: dict[str, _Shape] = {
    "attention_norm": lambda spec: (spec.hidden_size,),
    "q": lambda spec: (spec.num_heads * spec.head_dim, spec.hidden_size),
    "k": lambda spec: (spec.num_kv_heads * spec.head_dim, spec.hidden_size),
    "v": lambda spec: (spec.num_kv_heads * spec.head_dim, spec.hidden_size),
    "o": lambda spec: (spec.hidden_size, spec.num_heads * spec.head_dim),
    "mlp_norm": lambda spec: (spec.hidden_size,),
    "gate": lambda spec: (spec.intermediate_size, spec.hidden_size),
    "up": lambda spec: (spec.intermediate_size, spec.hidden_size),
    "down": lambda spec: (spec.hidden_size, spec.intermediate_size),
}
