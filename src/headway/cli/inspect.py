"""`headway inspect`: what a model file holds, whether it runs here, and in what memory.

Ends with 1 where it does not run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headway.cli.options import cache_dir
from headway.cli.report import Report, TensorType, inspect_model
from headway.cli.tables import count, size, table
from headway.cli.terminal import Terminal
from headway.models.sources import model_name, resolve_model
from headway.models.weights import ModelFile
from headway.runtime.memory import available_host_bytes

__all__ = ["run"]

_ITEMS_SHOWN = 4
_CHARACTERS_SHOWN = 72


def run(args: argparse.Namespace) -> None:
    """Raises `ModelNotFound` for what is not here: nothing is fetched."""
    path = resolve_model(
        args.name, cache_dir=cache_dir(args), revision=args.revision, local_files_only=True
    )
    report = inspect_model(
        path,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        available_bytes=available_host_bytes(),
    )
    if args.json:
        text = json.dumps(_as_json(report), ensure_ascii=False, indent=2)
    else:
        text = "\n".join(_as_lines(report, args.max_model_len, args.max_num_seqs))
    Terminal().write(text + "\n")
    if report.problem is not None:
        sys.exit(1)


def _as_json(report: Report) -> dict[str, Any]:
    model = report.model
    return {
        "name": model_name(report.path),
        "path": str(report.path),
        "runs": report.problem is None,
        "problem": report.problem,
        "model": None if model is None else _facts(model, report.chat_problem),
        "tensors": [asdict(item) for item in report.tensors],
        "memory": {
            "available_bytes": report.available_bytes,
            "dtypes": [asdict(fit) for fit in report.fits],
        },
        "metadata": {key: _shortened(value) for key, value in report.metadata.items()},
    }


def _facts(model: ModelFile, chat_problem: str | None) -> dict[str, Any]:
    spec = model.spec
    return {
        "family": spec.architecture,
        "format": model.format,
        "num_parameters": model.num_parameters,
        "precision": model.precision,
        "size_bytes": model.size_bytes,
        "max_position": spec.max_position,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "sliding_window": max((kind.window or 0 for kind in spec.attention), default=0) or None,
        "vocab_size": spec.vocab_size,
        "tokenizer": _tokenizer_kind(model.metadata),
        "chat_template": model.chat_template is not None,
        "chat_problem": chat_problem,
        "sampling_defaults": dict(model.sampling_defaults),
    }


def _as_lines(report: Report, max_model_len: int | None, max_num_seqs: int) -> list[str]:
    lines = [model_name(report.path), str(report.path), ""]
    if report.model is not None:
        lines += _model_lines(_facts(report.model, report.chat_problem))
        lines += _memory_lines(report, report.model, max_model_len, max_num_seqs)
    if report.tensors:
        head = ("Tensors", "NUMBER", "ELEMENTS", "SIZE")
        lines += [*table([head, *map(_tensor_row, report.tensors)]), ""]
    if report.metadata:
        fields = [(f"  {key:.60}", _shown(value)) for key, value in report.metadata.items()]
        lines += ["Metadata", *table(fields, left=(0, 1)), ""]
    return [*lines, _verdict(report)]


def _model_lines(facts: dict[str, Any]) -> list[str]:
    window = facts["sliding_window"]
    defaults = ", ".join(f"{key} {value}" for key, value in facts["sampling_defaults"].items())
    rows = [
        ("  family", f"{facts['family']}, {facts['format']}"),
        ("  parameters", f"{count(facts['num_parameters'])}, most in {facts['precision']}"),
        ("  size", size(facts["size_bytes"])),
        ("  context", f"{facts['max_position']:,} tokens"),
        (
            "  layers",
            f"{facts['num_layers']} of width {facts['hidden_size']:,}, MLP "
            f"{facts['intermediate_size']:,}",
        ),
        (
            "  attention",
            f"{facts['num_heads']} heads of {facts['head_dim']}, {facts['num_kv_heads']} for KV"
            + (f"; windows of {window:,} tokens" if window else ""),
        ),
        ("  tokenizer", f"{facts['tokenizer']}, {facts['vocab_size']:,} tokens"),
        ("  chat template", facts["chat_problem"] or ("yes" if facts["chat_template"] else "no")),
        ("  sampling", defaults or "no defaults of its own"),
    ]
    return ["Model", *table(rows, left=(0, 1)), ""]


def _memory_lines(
    report: Report, model: ModelFile, max_model_len: int | None, max_num_seqs: int
) -> list[str]:
    tokens = max_model_len or model.spec.max_position
    times = f"{max_num_seqs:,} × " if max_num_seqs > 1 else ""
    rows = [
        (
            f"  {fit.dtype}",
            size(fit.weight_bytes),
            size(fit.kv_bytes_per_token),
            size(fit.kv_bytes),
            "too large" if fit.kv_cache_tokens is None else f"{fit.kv_cache_tokens:,} tokens",
        )
        for fit in report.fits
    ]
    head = ("Memory", "WEIGHTS", "KV OF A TOKEN", f"OF {times}{tokens:,}", "KV CACHE HOLDS")
    return [*table([head, *rows]), f"  {size(report.available_bytes)} are available now", ""]


def _tensor_row(item: TensorType) -> tuple[str, ...]:
    elements = count(item.num_elements)
    return f"  {item.type}", f"{item.num_tensors:,}", elements, size(item.num_bytes)


def _verdict(report: Report) -> str:
    if report.problem is not None:
        return f"Does not run here: {report.problem}"
    best = next(fit.dtype for fit in report.fits if fit.problem is None)
    return "Runs here" + ("." if best == report.fits[0].dtype else f" with --dtype {best}.")


def _tokenizer_kind(metadata: Mapping[str, object]) -> str:
    kind, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if not isinstance(kind, str):
        return "tokenizer.json"
    return f"{kind} ({pre})" if isinstance(pre, str) else kind


def _shortened(value: object) -> object:
    """For JSON: a long array as its length and first items, numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {str(key): _shortened(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) <= _ITEMS_SHOWN:
            return [_shortened(item) for item in value]
        return {"length": len(value), "first": [_shortened(item) for item in value[:_ITEMS_SHOWN]]}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _shown(value: object) -> str:
    """On one line: what comes from a file is shown as a literal, so it cannot move a cursor."""
    if isinstance(value, list | tuple) and len(value) > _ITEMS_SHOWN:
        first = ", ".join(f"{item!r:.24}" for item in value[:_ITEMS_SHOWN])
        return f"{len(value):,} items: {first}, …"
    text = repr(value)
    return text if len(text) <= _CHARACTERS_SHOWN else f"{text[:_CHARACTERS_SHOWN]}…"
