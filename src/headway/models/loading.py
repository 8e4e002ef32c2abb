"""From the tensors of a file to a decoder's float32 weights, layer by layer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.errors import ModelError, UnsupportedModel
from headway.models.families import Layout
from headway.models.spec import DecoderSpec, DecoderWeights, LayerWeights
from headway.models.tensors import TensorFile, TensorInfo

__all__ = ["check_tensors", "load_weights"]

Array = npt.NDArray[np.float32]

_MAX_THREADS = 8
_AHEAD_PER_THREAD = 2
_PART_BYTES = 2 << 20
"""Float32 rows of a matrix that are loaded at a time."""
_MOST_NAMES_SHOWN = 4


def check_tensors(
    tensors: Mapping[str, TensorInfo], spec: DecoderSpec, layout: Layout, *, tied: bool
) -> None:
    """Raises unless these are exactly the decoder's tensors, in the spec's shapes.

    A head is needed only where it is not `tied` to the embedding; where there is one it is
    used all the same.

    Raises:
        ModelError: tensors are missing, or one is of another shape; the message names them.
        UnsupportedModel: there is one that the family does not know.
    """
    optional = {layout.model["head"]} if tied else set()
    required = (name for name, _ in _expected(spec, layout) if name not in optional)
    absent = (name for name in required if name not in tensors)
    if missing := list(islice(absent, _MOST_NAMES_SHOWN)):
        raise ModelError(f"tensors are missing: {', '.join(missing)} (perhaps more)")
    expected = dict(_expected(spec, layout))  # no more than there are tensors, and a head
    for name, tensor in tensors.items():
        if layout.is_no_weight(name):
            continue
        if name not in expected:
            raise UnsupportedModel(
                f"tensor {name!r:.80}: not supported in the {spec.architecture} family"
            )
        if tensor.shape != expected[name]:
            raise ModelError(
                f"tensor {name!r:.80}: the metadata make its shape {list(expected[name])}, "
                f"the file has {list(tensor.shape)}"
            )


def load_weights(file: TensorFile, spec: DecoderSpec, layout: Layout) -> DecoderWeights:
    """The decoder's weights; `check_tensors` must have passed.

    All but the final norm are loaded as they are taken, by threads that work a few tensors ahead.
    """
    load = _Loader(file, spec, layout)
    names = layout.model
    embedding = _Rows(load, "embedding")
    return DecoderWeights(
        embedding=embedding,
        layers=_Layers(load),
        final_norm=load("final_norm", names["final_norm"]),
        head=_Rows(load, "head") if names["head"] in file.tensors else embedding,
    )


@dataclass(frozen=True, slots=True)
class _Loader:
    """Loads a tensor as the spec means it, however the file stores it. Thread-safe."""

    file: TensorFile
    spec: DecoderSpec
    layout: Layout

    def __call__(self, field: str, name: str, rows: slice | None = None) -> Array:
        weight = self.file.load(name, rows)
        if field in ("q", "k") and self.layout.interleaved_rope:
            # Row (head, i, half) of the file is row (head, half, i) of the spec.
            pairs = weight.reshape(-1, self.spec.head_dim // 2, 2, self.spec.hidden_size)
            return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
        if field.endswith("norm") and self.layout.norm_offset:
            weight += np.float32(self.layout.norm_offset)
        return weight


@dataclass(frozen=True, slots=True)
class _Rows:
    """A `StoredMatrix`: the embedding or the head."""

    load: _Loader
    field: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.load.spec.vocab_size, self.load.spec.hidden_size

    def parts(self) -> Iterator[Array]:
        num_rows, width = self.shape
        step = max(1, _PART_BYTES // (4 * width))
        name = self.load.layout.model[self.field]
        return _ahead(
            partial(self.load, self.field, name, slice(begin, begin + step))
            for begin in range(0, num_rows, step)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = np.empty(self.shape, np.float32)
        begin = 0
        for part in self.parts():
            whole[begin : begin + len(part)] = part
            begin += len(part)
        return whole.astype(dtype or np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers in order, each loaded shortly before it is taken."""

    load: _Loader

    def __len__(self) -> int:
        return self.load.spec.num_layers

    def __iter__(self) -> Iterator[LayerWeights]:
        fields = tuple(_layer_shapes(self.load.spec))
        name = self.load.layout.layer_name
        jobs = (
            partial(self.load, field, name(layer, field))
            for layer in range(len(self))
            for field in fields
        )
        with closing(_ahead(jobs)) as tensors:
            for _ in range(len(self)):
                yield LayerWeights(**{field: next(tensors) for field in fields})


def _ahead(jobs: Iterable[Callable[[], Array]]) -> Generator[Array]:
    """What the jobs give, in order, each done shortly before it is taken: so that no more is in
    memory than keeps the threads busy."""
    num_threads = max(1, min(_MAX_THREADS, os.cpu_count() or 1))
    waiting: deque[Future[Array]] = deque()
    pool = ThreadPoolExecutor(num_threads, "load-weights")
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > _AHEAD_PER_THREAD * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the iteration is given up
        pool.shutdown(cancel_futures=True)


def _expected(spec: DecoderSpec, layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor name and shape."""
    for field, shape in _model_shapes(spec).items():
        yield layout.model[field], shape
    shapes = _layer_shapes(spec)
    for layer in range(spec.num_layers):
        for field, shape in shapes.items():
            yield layout.layer_name(layer, field), shape


def _model_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """By field of `DecoderWeights`."""
    return {
        "embedding": (spec.vocab_size, spec.hidden_size),
        "final_norm": (spec.hidden_size,),
        "head": (spec.vocab_size, spec.hidden_size),
    }


def _layer_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """By field of `LayerWeights`, those that this decoder has."""
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "q": (q_size, hidden),
        "k": (kv_size, hidden),
        "v": (kv_size, hidden),
        "o": (hidden, q_size),
        "mlp_norm": (hidden,),
        "gate": (intermediate, hidden),
        "up": (intermediate, hidden),
        "down": (hidden, intermediate),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (q_size,), "k_bias": (kv_size,), "v_bias": (kv_size,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        shapes |= {"attention_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
    return shapes
