"""The machine that something was measured on, in words."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["cpu_name", "describe_machine"]


def describe_machine() -> str:
    """`AMD EPYC, 2 cores, 23 GiB, Linux x86_64`; what cannot be told is left out."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        cpu_name(),
        f"{cores} core{'' if cores == 1 else 's'}" if cores else "",
        _memory(),
        f"{platform.system()} {platform.machine()}",
    ]
    return ", ".join(part for part in parts if part)


def cpu_name() -> str:
    """Its model's, where that can be told, else its architecture's."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return ""
    return f"{size / 2**30:.0f} GiB"
