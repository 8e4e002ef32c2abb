"""Compares the default model's tokens and logits in every situation with those of requests alone.

python tests/golden/exactness.py             as much as the tests run
python tests/golden/exactness.py --full      more and longer requests, every subject
python tests/golden/exactness.py --model M   another model: a file, a directory or a known name
python tests/golden/exactness.py --only int8 subjects whose name holds that, whatever else is asked

Exit status 1: a subject that promises exactness does not keep it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from exact import SITUATIONS, Outcome, Scale, Suite
from headway.models.sources import resolve_model
from headway.models.weights import ModelFile, open_model
from headway.runtime import kernels
from headway.runtime.cpu import KernelBackend
from headway.runtime.torch import Backend, EagerBackend

__all__ = ["FULL_SCALE", "SCALE", "SUBJECTS", "Subject"]

SCALE = Scale(block_size=16, shortest=5, longest=64, num_tokens=8, num_targets=6, num_others=3)
FULL_SCALE = Scale(
    block_size=16, shortest=3, longest=700, num_tokens=48, num_targets=16, num_others=16
)

_TEST_LAYERS = 6
"""Where the whole model would take too long for a test."""


@dataclass(frozen=True)
class Subject:
    """What is compared with itself."""

    name: str
    make: Callable[..., Backend]
    """(spec, weights, num_blocks=, block_size=, num_swap_blocks=)"""
    exact: bool
    """It promises the same bits. Else logits are to be close, and a token may be another at a near
    tie."""
    num_threads: int = 1
    in_tests: bool = True
    test_layers: int | None = None
    """So many of the model's first layers are run in tests; None: all."""

    @contextmanager
    def suite(
        self, model: ModelFile, scale: Scale, *, num_layers: int | None = None
    ) -> Iterator[Suite]:
        """What is run on it; with PyTorch's threads set meanwhile."""
        spec = replace(model.spec, attention=model.spec.attention[:num_layers])
        weights = model.load_weights()
        weights = replace(weights, layers=islice(weights.layers, num_layers))
        before = torch.get_num_threads()
        torch.set_num_threads(self.num_threads)
        try:
            yield Suite(spec, partial(self.make, spec, weights), scale)
        finally:
            torch.set_num_threads(before)


def _eager(dtype: torch.dtype, num_threads: int, *, in_tests: bool) -> Subject:
    name = f"eager, {str(dtype).removeprefix('torch.')}, {num_threads} threads"
    make = partial(EagerBackend, dtype=dtype)
    return Subject(
        name,
        make,
        exact=False,
        num_threads=num_threads,
        in_tests=in_tests,
        test_layers=3,
    )


def _kernels(
    dtype: str,
    kv_cache_dtype: str,
    num_threads: int,
    *,
    isa: str = "",
    in_tests: bool = False,
    test_layers: int | None = None,
) -> Subject:
    precision = dtype if kv_cache_dtype == dtype else f"{dtype} with {kv_cache_dtype} KV"
    name = f"{isa or 'kernels'}, {precision}, {num_threads} threads"
    make = partial(
        KernelBackend,
        kernels.native,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=num_threads,
        isa=isa or None,
    )
    return Subject(
        name,
        make,
        exact=True,
        num_threads=num_threads,
        in_tests=in_tests,
        test_layers=test_layers,
    )


def _all_kernels() -> Iterator[Subject]:
    """Every precision of products and KV; those that are equal with another number of threads
    too; and the other instruction sets in the precision that is the default."""
    if kernels.why_missing() is not None:
        return
    precisions = ("int8", "bfloat16", "float32")
    yield _kernels("int8", "int8", 2, in_tests=True)  # the default: the whole model
    for dtype in precisions[1:]:
        yield _kernels(dtype, dtype, 2, in_tests=True, test_layers=_TEST_LAYERS)
    for dtype in precisions:
        yield _kernels(dtype, dtype, 1)
        yield from (_kernels(dtype, other, 2) for other in precisions if other != dtype)
    yield from (_kernels("int8", "int8", 2, isa=isa) for isa in kernels.native.isas()[1:])


SUBJECTS = (
    *_all_kernels(),
    _eager(torch.float32, 2, in_tests=False),
    _eager(torch.float32, 1, in_tests=False),
    _eager(torch.bfloat16, 2, in_tests=False),
)


def compare(
    subject: Subject, model: ModelFile, scale: Scale, num_layers: int | None
) -> Iterator[Outcome]:
    with subject.suite(model, scale, num_layers=num_layers) as suite:
        for situation in SITUATIONS:
            yield suite.run(situation)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--only", metavar="TEXT")
    args: Any = parser.parse_args(argv)
    model = open_model(resolve_model(args.model))
    broken = False
    for subject in SUBJECTS:
        if not (args.only in subject.name if args.only else args.full or subject.in_tests):
            continue
        print(f"{subject.name}{': promises the same bits' if subject.exact else ''}")
        print(f"  {'':24}{'steps':>7}{'rows':>7}{'unequal':>9}{'largest':>10}  other tokens")
        scale, num_layers = (FULL_SCALE, None) if args.full else (SCALE, subject.test_layers)
        for outcome in compare(subject, model, scale, num_layers):
            broken |= subject.exact and not outcome.exact
            print(
                f"  {outcome.situation:24}{outcome.num_steps:7}{outcome.num_rows:7}"
                f"{outcome.num_unequal:9}{outcome.largest:10.1e}  {' '.join(outcome.other_tokens)}",
                flush=True,
            )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
