from __future__ import annotations

from itertools import count

import pytest
import torch

from headway.runtime import machine
from headway.runtime.machine import measure_machine


def test_rates_are_of_the_fastest_run_and_not_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_READ_BYTES", 4000)
    monkeypatch.setattr(machine, "_ROWS", 32)
    monkeypatch.setattr(machine, "_WIDTH", 16)
    # Of each thing six runs, the first of no time at all, the others of 5, 4, 3, 2 and 1 s.
    taken = [0, 5, 4, 3, 2, 1] * 4
    moments = [moment for run, s in enumerate(taken) for moment in (100 * run, 100 * run + s)]
    ticks = iter(moments)
    found = measure_machine(timer=lambda: next(ticks))
    assert found.read_bytes_per_s == 4000
    assert found.operations_per_s == dict.fromkeys(
        ("float32", "bfloat16", "int8"), 2 * 32 * 16 * 16
    )
    assert found.num_threads == torch.get_num_threads()


def test_a_product_that_pytorch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_READ_BYTES", 4000)
    monkeypatch.setattr(machine, "_ROWS", 32)
    monkeypatch.setattr(machine, "_WIDTH", 16)
    monkeypatch.delattr(torch, "_int_mm")
    ticks = count()
    assert set(measure_machine(timer=lambda: next(ticks)).operations_per_s) == {
        "float32",
        "bfloat16",
    }
