"""`scripts/build_kernels.py`, with a pretended CMake: what it leaves, and what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from start_harness import write_program

ROOT = Path(__file__).parents[2]
MODULE = f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
CMAKE = f"""
echo "$@" >>"$CALLS"
case $1 in
  --install)
    mkdir -p "$4/headway/runtime"
    echo new >"$4/headway/runtime/{MODULE}" ;;
  --build)
    cat "$BUILD_SAYS"
    exit "$BUILD_EXITS" ;;
  -S)
    [ -e "$4/CMakeCache.txt" ] && echo remembered >>"$CALLS"
    touch "$4/CMakeCache.txt" ;;
esac
"""


@dataclass
class Tree:
    root: Path
    env: dict[str, str]

    @property
    def runtime(self) -> Path:
        return self.root / "src" / "headway" / "runtime"

    def build(self, says: str = "", exits: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        (self.root / "says").write_text(says)
        return subprocess.run(
            [sys.executable, self.root / "scripts" / "build_kernels.py"],
            env=self.env | {"BUILD_EXITS": str(exits)} | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def left(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.runtime.iterdir()}

    def calls(self) -> str:
        return (self.root / "calls").read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A project with the script alone, and tools that only note what they are asked."""
    for directory in ("scripts", "src/headway/runtime", "bin", "modules"):
        (tmp_path / directory).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "build_kernels.py", tmp_path / "scripts")
    write_program(tmp_path / "bin" / "cmake", CMAKE)
    write_program(tmp_path / "bin" / "ninja", "")
    (tmp_path / "modules" / "nanobind.py").write_text("print('/its/cmake/files')\n")
    env = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path / "modules"),
        "CALLS": str(tmp_path / "calls"),
        "BUILD_SAYS": str(tmp_path / "says"),
    }
    return Tree(tmp_path, env)


def test_the_module_takes_the_place_of_an_older_one_and_of_a_log(tree: Tree) -> None:
    (tree.runtime / MODULE).write_text("old")
    (tree.runtime / MODULE).with_suffix(".log").write_text("old")
    with (tree.runtime / MODULE).open() as mapped:
        result = tree.build("[1/1] a warning\n")
        assert mapped.read() == "old"
    assert result.returncode == 0, result.stderr
    assert tree.left() == {MODULE: "new\n"}
    assert "a warning" in result.stdout
    assert f"-DPython_EXECUTABLE={sys.executable} -Dnanobind_DIR=/its/cmake/files" in tree.calls()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (
            "CMake Error at CMakeLists.txt:9 (message):\n"
            "  headway: no C++ compiler (apt install\n  g++)\n\n\n-- Configuring incomplete\n",
            "no C++ compiler (apt install g++)",
        ),
        (
            "[1/9] c++\n{root}/csrc/a.h:3:1: error: no ;\n{root}/csrc/b.h:1:1: error: x\n",
            "they do not compile: csrc/a.h:3:1: error: no ;",
        ),
        ("Killed\n", "CMake failed"),
    ],
    ids=["missing", "error", "unknown"],
)
def test_a_failed_build_leaves_the_reason_and_the_log_alone(
    tree: Tree, says: str, reason: str
) -> None:
    (tree.runtime / MODULE).write_text("old")
    result = tree.build(says.format(root=tree.root), exits=1)
    assert result.returncode == 1, result.stderr
    ((name, log),) = tree.left().items()
    assert name == MODULE.replace(".so", ".log")
    first, _, rest = log.partition("\n\n")
    assert first == reason
    assert says.format(root=tree.root) in rest


def test_what_cmake_remembers_is_dropped_when_another_compiler_is_named(tree: Tree) -> None:
    tree.build()
    assert "remembered" not in tree.calls()
    tree.build()
    assert tree.calls().count("remembered") == 1
    tree.build(CXX="another")
    assert tree.calls().count("remembered") == 1


def test_tools_that_pip_cannot_install_are_named(tree: Tree) -> None:
    (tree.root / "modules" / "nanobind.py").unlink()
    (tree.root / "modules" / "pip.py").write_text("raise SystemExit('no network')\n")
    result = tree.build()
    assert result.returncode == 1
    (log,) = tree.left().values()
    assert log.startswith("pip could not install nanobind\n")
    assert "no network" in log
