"""What can be told of a model on disk without loading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.config import (
    DTYPE_BYTES,
    EngineArgs,
    ModelLimits,
    kv_token_bytes,
    resolve,
    weight_bytes,
)
from headway.errors import HeadwayError, InvalidConfig, ModelError
from headway.models.directory import holds_safetensors, open_directory
from headway.models.gguf import GGUFFile
from headway.models.json_file import read_json
from headway.models.tensors import TensorInfo, num_elements
from headway.models.weights import ModelFile, open_model
from headway.text.chat_template import ChatTemplate

__all__ = ["Fit", "Report", "TensorType", "inspect_model"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The tensors of one type in a file."""

    type: str
    num_tensors: int
    num_elements: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a precision takes in this machine's memory, on the CPU."""

    dtype: str
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    """Of all requests that were asked for, at their full length."""
    kv_cache_tokens: int | None
    """What the KV cache of an engine would hold; None: it does not start, and `problem` says
    why."""
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A file or directory, whether it is a model that runs here or not."""

    path: Path
    metadata: Mapping[str, object]
    """GGUF's fields, or those of config.json; empty where not even these can be read."""
    tensors: tuple[TensorType, ...]
    """Most bytes first."""
    model: ModelFile | None
    available_bytes: int
    fits: tuple[Fit, ...]
    """The precisions, the default first; none without a model."""
    file_problem: str | None
    """What is wrong with the file or its tokenizer."""
    chat_problem: str | None
    """Why its chat template cannot be used, which leaves completions; None: it can, or there is
    none."""

    @property
    def problem(self) -> str | None:
        """Why it does not run here, in no precision; None: it does."""
        if self.file_problem is not None:
            return self.file_problem
        return None if any(fit.problem is None for fit in self.fits) else self.fits[-1].problem


def inspect_model(
    path: Path, *, max_model_len: int | None, max_num_seqs: int, available_bytes: int
) -> Report:
    """Reads what can be read, and puts what is wrong with the rest into the report.

    Raises InvalidConfig for a length or a number of requests that cannot be meant.
    """
    metadata, tensors = _read(path)
    model, problem, chat_problem = _try(path)
    fits = []
    if model is not None:
        _check(model, max_model_len, max_num_seqs)
        for dtype in DTYPE_BYTES:
            args = EngineArgs(dtype=dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
            fits.append(_fit(model, args, max_num_seqs, available_bytes))
    return Report(
        path=path,
        metadata=metadata,
        tensors=tensors,
        model=model,
        available_bytes=available_bytes,
        fits=tuple(fits),
        file_problem=problem,
        chat_problem=chat_problem,
    )


def _read(path: Path) -> tuple[Mapping[str, object], tuple[TensorType, ...]]:
    """As much as can be read; what is wrong is for `_try` to say."""
    metadata: Mapping[str, object] = {}
    try:
        ggufs = [path] if path.is_file() else list(path.glob("*.gguf"))
        if len(ggufs) == 1 and not (path.is_dir() and holds_safetensors(path)):
            file = GGUFFile.open(ggufs[0])
            return file.metadata, _by_type(file.tensors.values())
        metadata = read_json(path / "config.json")
        return metadata, _by_type(open_directory(path).tensors.tensors.values())
    except ModelError:
        pass
    return metadata, ()


def _try(path: Path) -> tuple[ModelFile | None, str | None, str | None]:
    """The model, if it is one, why it does not run, and why it does not chat; None: it does.

    Beside the file itself its tokenizer and its chat template are built, as an engine does.
    """
    model = None
    try:
        model = open_model(path)
        tokenizer = model.tokenizer()
    except HeadwayError as error:
        return model, str(error), None
    if model.chat_template is not None:
        try:
            ChatTemplate(
                model.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
            )
        except ModelError as error:
            return model, None, str(error)
    return model, None, None


def _check(model: ModelFile, max_model_len: int | None, max_num_seqs: int) -> None:
    if max_model_len is not None and not 2 <= max_model_len <= model.spec.max_position:
        raise InvalidConfig(
            "max_model_len", f"must be between 2 and the model's {model.spec.max_position:,}"
        )
    if max_num_seqs < 1:
        raise InvalidConfig("max_num_seqs", f"must be at least 1, not {max_num_seqs}")


def _fit(model: ModelFile, args: EngineArgs, max_num_seqs: int, available_bytes: int) -> Fit:
    """By the rules that an engine starts by."""
    spec = model.spec
    limits = ModelLimits(
        max_position=spec.max_position,
        num_parameters=model.num_parameters,
        num_channels=model.num_channels,
        kv_elements_per_token=spec.kv_elements_per_token,
        available_bytes=available_bytes,
        kv_vectors_per_token=spec.kv_elements_per_token // spec.head_dim,
        kernels="any",  # whether they are built here is for the engine to say
    )
    tokens, problem = None, None
    try:
        config = resolve(args, limits, device="cpu")
        tokens = config.num_kv_blocks * config.block_size
    except InvalidConfig as error:
        problem = str(error)
    per_token = kv_token_bytes(limits, args.dtype)
    return Fit(
        dtype=args.dtype,
        weight_bytes=weight_bytes(limits, args.dtype),
        kv_bytes_per_token=per_token,
        kv_bytes=per_token * (args.max_model_len or spec.max_position) * max_num_seqs,
        kv_cache_tokens=tokens,
        problem=problem,
    )


def _by_type(tensors: Iterable[TensorInfo]) -> tuple[TensorType, ...]:
    found: dict[str, TensorType] = {}
    for tensor in tensors:
        before = found.get(tensor.type, TensorType(tensor.type, 0, 0, 0))
        found[tensor.type] = TensorType(
            tensor.type,
            before.num_tensors + 1,
            before.num_elements + num_elements(tensor),
            before.num_bytes + tensor.data.nbytes,
        )
    return tuple(sorted(found.values(), key=lambda item: -item.num_bytes))
