"""The PyTorch executor: one implementation, the device is a parameter."""

from __future__ import annotations

from headway.runtime.torch.executor import TorchExecutor

__all__ = ["TorchExecutor"]
