"""The C++ kernels, or why they are missing.

`native` is the extension module, typed by `_kernels.pyi`. It is there if `why_missing()` is
None; a module that can do without reaches it as `kernels.native`. `scripts/build_kernels.py`
builds it beside this file, for one Python each, or leaves a log whose first line is the reason.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

# First: the extension calls the OpenMP runtime that PyTorch has loaded, and brings none.
import torch as _torch  # noqa: F401

__all__ = ["native", "why_missing"]

_SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")


def why_missing() -> str | None:
    """A line that says why there is no `native`, and where the log of its build lies; or None."""
    return _why_missing


def _reason(error: ImportError, directory: Path, suffix: str) -> str:
    """Why a module for `suffix`, looked for in `directory`, could not be imported."""
    module = directory / f"_kernels{suffix}"
    if module.exists():
        return f"{module.name} cannot be loaded: {error}"
    log = module.with_suffix(".log")
    if log.exists():
        reason = log.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        return f"{reason}; the whole log: {log}"
    others = sorted(path.name for path in directory.glob("_kernels.*.so"))
    if others:
        return f"built for another Python: {', '.join(others)}; this one needs {module.name}"
    return f"{module.name} was not built (by scripts/build_kernels.py or pip install)"


_why_missing: str | None = None
try:
    from headway.runtime import _kernels as native
except ImportError as _error:
    _why_missing = _reason(_error, Path(__file__).parent, _SUFFIX)
