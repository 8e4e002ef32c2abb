"""Executors that compute: `reference` in NumPy, `torch` for CPU and CUDA.

Nothing is imported here, so that the reference executor can be had without PyTorch.
"""

from __future__ import annotations

__all__: list[str] = []
