"""`scripts/start` in earnest: an installation from the package index, which takes a minute or two.

Not part of `make test`: `.ci/run` does it, and `make test ARGS=tests/install`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from start_harness import PYTHON, ROOT, Project, kill, project_with, wait_for_line

SMALL_TEST = "tests/unit/test_house.py::test_there_are_modules_to_check"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A copy where a first start was killed amid its installation and a second one finished."""
    question = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    answer = subprocess.run(
        [*question, "--ignore-installed", "scikit-build-core"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if answer.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"no package index can be reached: {answer.stderr.strip()}")
    directory = tmp_path_factory.mktemp("real")
    project = project_with(directory, f'exec "{PYTHON}" "$@"')
    process = project.start("test", "-q", SMALL_TEST)
    wait_for_line(process, "installing torch")
    kill(process)
    result = project.run("test", "-q", SMALL_TEST, timeout_s=900)
    assert result.returncode == 0, result.stderr
    assert "1 passed" in result.stdout
    assert "without the C++ kernels: no working C++ compiler" in result.stderr
    yield project
    shutil.rmtree(directory)  # pytest would keep this gigabyte for three runs


def test_it_installs_from_nothing_without_make_or_a_compiler(installed: Project) -> None:
    unneeded = ("make", "gcc", "g++", "cc", "cmake", "ninja")
    tools = installed.env["PATH"]
    assert not [program for program in unneeded if shutil.which(program, path=tools)]
    program = (
        "import headway, torch, headway.runtime.kernels as kernels;"
        "assert kernels.why_missing().startswith('no working C++ compiler (');"
        "print(torch.__version__, headway.__file__)"
    )
    result = subprocess.run(
        [installed.root / ".venv" / "bin" / "python", "-c", program],
        env=installed.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    pinned = (ROOT / "constraints.txt").read_text().split("torch==")[1].split()[0]
    version, path = result.stdout.strip().split(" ", 1)
    assert version.split("+")[0] == pinned
    assert Path(path) == installed.root / "src" / "headway" / "__init__.py"


def test_a_second_start_needs_no_network(installed: Project) -> None:
    nowhere = "http://127.0.0.1:1"
    cut_off = {"http_proxy": nowhere, "https_proxy": nowhere, "PIP_INDEX_URL": nowhere}
    offline = Project(installed.root, installed.env | cut_off)
    result = offline.run("test", "-q", SMALL_TEST)
    assert result.returncode == 0, result.stderr
    assert "1 passed" in result.stdout
    assert "installing" not in result.stderr
