"""What this machine can do at best: the rates that bound how fast a model can run on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Machine", "measure_machine"]

_READ_BYTES = 320 * 2**20
"""More than caches hold."""
_ROWS, _WIDTH = 512, 2048
_TIMES = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates, with as many threads as PyTorch uses."""

    read_bytes_per_s: float
    """Of memory."""
    operations_per_s: Mapping[str, float]
    """By dtype (`float32`, `bfloat16`, `int8`) of a large product, an addition and a
    multiplication being two; without those that this PyTorch has no product for."""
    num_threads: int


def measure_machine(device: str = "cpu", timer: Callable[[], float] = time.perf_counter) -> Machine:
    """Takes about a second, and 320 MiB for as long. The best of a few runs counts: what others
    did to the machine meanwhile is no property of it."""
    where = torch.device(device)
    memory = torch.zeros(_READ_BYTES // 4, dtype=torch.float32, device=where)
    read_s = _least_s(memory.sum, where, timer)
    operations = {}
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        a = torch.ones(_ROWS, _WIDTH, dtype=dtype, device=where)
        b = torch.ones(_WIDTH, _WIDTH, dtype=dtype, device=where)
        try:
            product_s = _least_s(_product(a, b), where, timer)
        except (RuntimeError, AttributeError):
            continue  # none of this dtype
        operations[str(dtype).removeprefix("torch.")] = 2 * _ROWS * _WIDTH**2 / product_s
    return Machine(_READ_BYTES / read_s, operations, torch.get_num_threads())


def _product(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b)
    return lambda: torch.mm(a, b)


def _least_s(
    action: Callable[[], Tensor], device: torch.device, timer: Callable[[], float]
) -> float:
    taken = []
    for _ in range(_TIMES + 1):  # the first pays for what was never touched
        begin = timer()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(timer() - begin)
    return min(taken[1:])
