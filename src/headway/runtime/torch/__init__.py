"""The PyTorch executor, and its backend of PyTorch's own operators for CPU and CUDA."""

from __future__ import annotations

from headway.runtime.torch.backend import Backend
from headway.runtime.torch.eager import EagerBackend
from headway.runtime.torch.executor import TorchExecutor

__all__ = ["Backend", "EagerBackend", "TorchExecutor"]
