"""The backend of the C++ kernels: the decoder on a CPU, a step in one call."""

from __future__ import annotations

from headway.runtime.cpu.backend import KernelBackend, why_not
from headway.runtime.cpu.probe import KernelSettings
from headway.runtime.cpu.promise import promise

__all__ = ["KernelBackend", "KernelSettings", "promise", "why_not"]
