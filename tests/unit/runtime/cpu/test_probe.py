"""The probe finds nothing where all is well, and what is wrong where something is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.core.plan import StepPlan
from headway.runtime import kernels
from headway.runtime.inputs import OutputRows

if kernels.why_missing() is not None:
    pytest.skip(f"no kernels: {kernels.why_missing()}", allow_module_level=True)

from headway.runtime.cpu import KernelBackend, KernelSettings, promise
from headway.runtime.cpu.probe import decoder_fault, kernel_fault
from unit.runtime.cpu.test_backend import LLAMA, PRECISIONS, SPECS, backend

ISAS = kernels.native.isas()
SETTINGS = KernelSettings(
    native=kernels.native,
    isa=ISAS[0],
    dtype="int8",
    kv_cache_dtype="int8",
    block_size=16,
    num_threads=2,
    max_num_batched_tokens=70,
)


def with_native(**changed: Any) -> KernelSettings:
    names = ("Product", "record_bytes", "write_kv", "attention", "source_hash", "compiler")
    own = {name: getattr(kernels.native, name) for name in names}
    return replace(SETTINGS, native=SimpleNamespace(**own | changed))


@pytest.mark.parametrize(
    ("name", "dtype", "isa"),
    [
        *(("everything", dtype, isa) for dtype in PRECISIONS for isa in ISAS),
        *((name, "int8", ISAS[0]) for name in SPECS),
    ],
)
def test_there_is_nothing_wrong_with_the_kernels(name: str, dtype: str, isa: str) -> None:
    settings = replace(SETTINGS, isa=isa, dtype=dtype, kv_cache_dtype=dtype)
    assert kernel_fault(settings, SPECS[name]) is None


def product_that(spoils: Callable[[Any, int], object]) -> KernelSettings:
    """Its results, with the number of threads, are handed to `spoils`."""

    class Product:
        def __init__(self, **options: Any) -> None:
            self._right = kernels.native.Product(**options)

        def multiply(self, rows: Any, out: Any, num_threads: int) -> None:
            self._right.multiply(rows, out, num_threads)
            spoils(out, num_threads)

    return with_native(Product=Product)


def one_up(values: Any) -> None:
    values[...] = np.nextafter(values, np.float32(np.inf))


@pytest.mark.parametrize(
    ("spoils", "fault"),
    [
        (lambda out, _: len(out) == 64 and one_up(out[63:, -1:]), "rows differ among 64, with 1"),
        (lambda out, n: n == 2 and len(out) == 3 and one_up(out[1:2]), "among 3, with 2 threads"),
        (lambda out, _: len(out) == 70 and one_up(out[-1:]), "rows differ among 70, with 1"),
        (lambda out, _: one_up(out[:, 5:6]), "sums of int8 products are not the integers"),
        (lambda out, _: np.clip(out, -2e4, 2e4, out=out), "qkv: sums of int8 products are not"),
    ],
)
def test_a_product_that_differs_is_found(spoils: Any, fault: str) -> None:
    found = kernel_fault(product_that(spoils), LLAMA)
    assert found is not None
    assert fault in found


@pytest.mark.parametrize("when", ["threads", "chunk", "blocks"])
def test_attention_that_differs_is_found(when: str) -> None:
    def attention(*, out: Any, spans: Any, tables: Any, num_threads: int, **others: Any) -> None:
        kernels.native.attention(
            out=out, spans=spans, tables=tables, num_threads=num_threads, **others
        )
        wrong = {"threads": num_threads > 1, "chunk": len(spans) > 1, "blocks": tables[0] > 0}
        if wrong[when]:
            one_up(out[7, 1, 3:4])

    settings = with_native(attention=attention)
    assert kernel_fault(settings, LLAMA) == "attention, window 0: rows differ from alone"
    windows = {kind.window for kind in SPECS["gemma3"].attention} - {None}
    found = kernel_fault(settings, SPECS["gemma3"])
    assert found is not None
    assert any(f"window {window}:" in found for window in windows)


class Wrong(KernelBackend):
    """One bit off in the state of what `when` says."""

    when: Callable[[StepPlan], object]

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        states = super().hidden(plan, known, rows)
        if self.when(plan):
            states[0] = states[0].nextafter(torch.tensor(torch.inf))
        return states


@pytest.mark.parametrize("num_blocks", [1, 2, 5, 40])
def test_there_is_nothing_wrong_with_the_decoder(num_blocks: int) -> None:
    assert decoder_fault(backend(dtype="int8", num_blocks=num_blocks), LLAMA) is None


@pytest.mark.parametrize(
    ("when", "fault"),
    [
        (lambda plan: len(plan.chunks) > 1, "beside another request"),
        (lambda plan: plan.chunks[0].start, "in chunks"),
    ],
)
def test_a_decoder_that_differs_is_found(when: Any, fault: str) -> None:
    model = backend(dtype="float32")
    model.__class__ = Wrong
    model.when = when
    found = decoder_fault(model, LLAMA)
    assert found is not None
    assert fault in found


def test_what_a_full_probe_found_is_kept_for_the_same_settings(tmp_path: Path) -> None:
    directory, model = tmp_path / "not" / "there", backend(dtype="int8")

    def probed(probe: str, settings: KernelSettings = SETTINGS, spec: Any = LLAMA) -> str:
        return str(promise(probe, settings, spec, model, directory))

    assert probed("off") == "no promise: not probed (probe: off)"
    good = "promised: tokens and logits are those of a request alone"
    assert probed("fast") == f"{good} (fast probe)"
    assert not directory.exists()
    assert probed("full") == f"{good} (full probe)"
    assert probed("fast") == f"{good} (full probe, earlier)"
    for other in (
        replace(SETTINGS, num_threads=1),
        replace(SETTINGS, kv_cache_dtype="float32"),
        with_native(source_hash=lambda: "of another tree"),
    ):
        assert probed("fast", other) == f"{good} (fast probe)"
    assert probed("fast", spec=replace(LLAMA, rms_norm_eps=1e-6)) == f"{good} (fast probe)"
    (path,) = directory.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert probed("fast") == f"{good} (fast probe)"


def test_a_fault_is_kept_until_a_full_probe_finds_none(tmp_path: Path) -> None:
    model = backend(dtype="float32")
    model.__class__ = Wrong
    model.when = lambda plan: len(plan.chunks) > 1
    fault = "logits beside another request are not those alone"
    for probe, how in (("full", "full probe"), ("fast", "full probe, earlier")):
        found = promise(probe, SETTINGS, LLAMA, model, tmp_path)
        assert (found.promised, found.note) == (False, f"{fault} ({how})")
    model.when = lambda _: False
    assert promise("full", SETTINGS, LLAMA, model, tmp_path).promised
    assert promise("fast", SETTINGS, LLAMA, model, tmp_path).note.endswith("(full probe, earlier)")


def test_where_nothing_can_be_kept_the_probe_is_made_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for probe in ("full", "fast"):
        found = promise(probe, SETTINGS, LLAMA, backend(dtype="int8"), file)
        assert found.note.endswith(f"({probe} probe)")
