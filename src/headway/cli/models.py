"""`headway models`: what is in Headway's cache and in the hub's."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headway.cli.options import cache_dir
from headway.cli.tables import count, size, table
from headway.cli.terminal import Terminal
from headway.errors import ModelError
from headway.models.sources import CachedModel, cache_directory, cached_models
from headway.models.weights import open_model

__all__ = ["run"]

_HEAD = ("NAME", "FAMILY", "PARAMETERS", "PRECISION", "CONTEXT", "SIZE", "")
_LEFT = (0, 1, 3, 6)


def run(args: argparse.Namespace) -> None:
    records = [_record(model) for model in cached_models(cache_dir(args))]
    if args.json:
        text = json.dumps(records, ensure_ascii=False, indent=2)
    elif records:
        text = "\n".join(table([_HEAD, *map(_row, records)], left=_LEFT))
    else:
        where = cache_directory(cache_dir(args))
        text = f"No models in {where} or in the hub's cache; `headway pull` fetches one."
    Terminal().write(text + "\n")


def _record(cached: CachedModel) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": cached.name,
        "revision": cached.revision,
        "path": str(cached.path),
        "size_bytes": cached.size_bytes,
        "default": cached.is_default,
    }
    try:
        model = open_model(cached.path)
    except ModelError as error:
        return {**record, "problem": str(error).removeprefix(f"{cached.path}: ")}
    return {
        **record,
        "family": model.spec.architecture,
        "num_parameters": model.num_parameters,
        "precision": model.precision,
        "max_position": model.spec.max_position,
        "size_bytes": model.size_bytes,
        "problem": None,
    }


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    notes = ["(default)"] if record["default"] else []
    if record["revision"] is not None:
        notes.append(f"--revision {record['revision']}")
    if record["problem"] is not None:
        problem = f"{size(record['size_bytes'])}; does not run: {record['problem']}"
        return record["name"], "  ".join([problem, *notes])
    return (
        record["name"],
        record["family"],
        count(record["num_parameters"]),
        record["precision"],
        f"{record['max_position']:,}",
        size(record["size_bytes"]),
        "  ".join(notes),
    )
