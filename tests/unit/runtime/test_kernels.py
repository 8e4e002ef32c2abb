"""The extension module: found, of this tree, with PyTorch's threads; or missed for a reason."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.runtime import kernels
from headway.runtime.kernels import _reason

ROOT = Path(__file__).parents[3]
SUFFIX = ".cpython-399-x86_64-linux-gnu.so"
NOT_FOUND = ImportError("cannot import name '_kernels'")

needs_kernels = pytest.mark.skipif(kernels.why_missing() is not None, reason="no kernels here")


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_first_line_of_a_failed_builds_log_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "_kernels.cpython-399-x86_64-linux-gnu.log"
    log.write_text("no Python.h\n\n$ cmake\nno such line\n")
    assert _reason(NOT_FOUND, tmp_path, SUFFIX) == f"no Python.h; the whole log: {log}"


def test_a_module_of_another_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "_kernels.cpython-398-x86_64-linux-gnu.so").touch()
    reason = _reason(NOT_FOUND, tmp_path, SUFFIX)
    assert "built for another Python: _kernels.cpython-398-x86_64-linux-gnu.so" in reason
    assert reason.endswith("needs _kernels.cpython-399-x86_64-linux-gnu.so")


def test_a_module_that_cannot_be_loaded_is_named_with_the_error(tmp_path: Path) -> None:
    """Also where an older log lies beside it."""
    (tmp_path / "_kernels.cpython-399-x86_64-linux-gnu.so").touch()
    (tmp_path / "_kernels.cpython-399-x86_64-linux-gnu.log").write_text("old\n")
    reason = _reason(ImportError("undefined symbol: GOMP_parallel"), tmp_path, SUFFIX)
    assert "_kernels.cpython-399-x86_64-linux-gnu.so cannot be loaded" in reason
    assert reason.endswith(": undefined symbol: GOMP_parallel")


def test_where_nothing_was_built_it_says_how(tmp_path: Path) -> None:
    (tmp_path / "_kernels.pyi").touch()
    assert "not built (by scripts/build_kernels.py" in _reason(NOT_FOUND, tmp_path, SUFFIX)


@needs_kernels
def test_they_are_built_from_this_tree() -> None:
    """Else: `make kernels`."""
    sources = [Path("CMakeLists.txt"), *(path.relative_to(ROOT) for path in ROOT.glob("csrc/*"))]
    digests = [
        f"{hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}  {path.as_posix()}\n"
        for path in sorted(sources, key=str)
    ]
    assert kernels.native.source_hash() == hashlib.sha256("".join(digests).encode()).hexdigest()


@needs_kernels
def test_every_cpu_runs_the_portable_ones_and_takes_them_last() -> None:
    assert kernels.native.isas()[-1] == "portable"
    assert len(set(kernels.native.isas())) == len(kernels.native.isas())


@needs_kernels
def test_there_is_one_openmp_runtime_and_its_threads_are_pytorchs() -> None:
    result = run("""
import pathlib, re, torch
from headway.runtime.kernels import native
torch.ones(512, 512) @ torch.ones(512, 512)
for threads in (1, 3, 2):
    torch.set_num_threads(threads)
    assert {native.num_threads(isa) for isa in native.isas()} == {threads}
maps = pathlib.Path("/proc/self/maps").read_text()
print(len({line.split()[-1] for line in maps.splitlines() if re.search(r"/lib[gi]?omp", line)}))
""")
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr


@needs_kernels
def test_without_pytorch_they_fail_to_load_and_not_at_the_first_call() -> None:
    path = kernels.native.__file__
    result = run(f"""
from importlib.util import module_from_spec, spec_from_file_location
module_from_spec(spec_from_file_location("headway.runtime._kernels", {path!r}))
""")
    assert result.returncode == 1
    assert "ImportError" in result.stderr
    assert re.search("undefined symbol: (GOMP|omp)_", result.stderr)
