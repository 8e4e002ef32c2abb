"""What an engine on the kernels may promise: probed at start, or found earlier and kept.

A full probe takes what a prompt of a thousand tokens takes, so what it found is kept in a file,
named by all that it depends on. Without one the kernels alone are probed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import torch

from headway.engine.exactness import Exactness
from headway.machine import cpu_name
from headway.models.spec import DecoderSpec
from headway.runtime.cpu.probe import KernelSettings, decoder_fault, kernel_fault
from headway.runtime.torch.backend import Backend

__all__ = ["promise"]


class _Found(msgspec.Struct):
    """What a file holds."""

    of: dict[str, Any]
    fault: str | None


def promise(
    probe: str, kernels: KernelSettings, spec: DecoderSpec, backend: Backend, directory: Path
) -> Exactness:
    """Probes the kernels as `probe` says: `fast`, what a full probe found before, else the kernels
    alone; `full`, all of it, now; `off`, nothing.

    `backend` is the model's on these kernels, and not in use yet: a full probe leaves anything in
    its cache. What it found is kept in `directory`, which need not exist, nor be writable.
    """
    if probe == "off":
        return Exactness(False, "not probed (probe: off)")
    of = _depends_on(kernels, spec)
    name = hashlib.sha256(msgspec.json.encode(of, order="sorted")).hexdigest()[:24]
    path = directory / f"{name}.json"
    if probe == "full":
        fault = kernel_fault(kernels, spec) or decoder_fault(backend, spec)
        _keep(path, _Found(of, fault))
        return _exactness(fault, "full probe")
    kept = _kept(path, of)
    if kept is not None:
        return _exactness(kept.fault, "full probe, earlier")
    return _exactness(kernel_fault(kernels, spec), "fast probe")


def _exactness(fault: str | None, how: str) -> Exactness:
    if fault is not None:
        return Exactness(False, f"{fault} ({how})")
    return Exactness(True, f"tokens and logits are those of a request alone ({how})")


def _depends_on(kernels: KernelSettings, spec: DecoderSpec) -> dict[str, Any]:
    settings = {
        name: getattr(kernels, name)
        for name in KernelSettings.__dataclass_fields__
        if name != "native"
    }
    return {
        "cpu": cpu_name(),
        "torch": str(torch.__version__),
        "kernels": kernels.native.source_hash(),
        "compiler": kernels.native.compiler(),
        "model": hashlib.sha256(repr(spec).encode()).hexdigest(),
        **settings,
    }


def _kept(path: Path, of: dict[str, Any]) -> _Found | None:
    """Whatever a file holds that is not of these very settings counts for nothing."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Found)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.of == of else None


def _keep(path: Path, found: _Found) -> None:
    """Whole or not at all; where nothing can be written, nothing is kept."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(found))
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
