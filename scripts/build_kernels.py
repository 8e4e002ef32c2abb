"""Builds the C++ kernels in place, for the Python that runs this:

    .venv/bin/python scripts/build_kernels.py

The module goes to `src/headway/runtime/`, where an editable installation and `PYTHONPATH=src`
find it, and objects to `build/`, so that a second build compiles only what changed. Where it
fails, the module of an earlier build is gone and a log lies in its place, whose first line is
the reason. What the build needs and this machine lacks (nanobind, CMake, Ninja) is installed
by pip into `build/tools`, once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["MODULE", "build"]

MODULE = f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
"""The file's name. Each Python has its own beside the others'; a log of that name likewise."""

_ROOT = Path(__file__).resolve().parents[1]
_IN_PLACE = _ROOT / "src" / "headway" / "runtime"
_BUILD = _ROOT / "build" / Path(MODULE).stem.lstrip("_")
_TOOLS = _ROOT / "build" / "tools"


@dataclass
class BuildFailed(Exception):
    """`reason` is a line for the user."""

    reason: str


def build(target: Path = _IN_PLACE) -> Path:
    """Puts the module into the directory or, where it cannot be built, the log; says which.

    One build at a time: others wait.
    """
    module, log = target / MODULE, (target / MODULE).with_suffix(".log")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock, (_BUILD / "log").open("w+", encoding="utf-8") as file:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _run_cmake(file)
        except BuildFailed as failure:
            file.seek(0)
            log.write_text(f"{failure.reason}\n\n{file.read()}", encoding="utf-8")
            module.unlink(missing_ok=True)
            return log
        # Moved and not copied over the old one, which running processes have mapped.
        shutil.copyfile(_BUILD / "stage" / "headway" / "runtime" / MODULE, _BUILD / MODULE)
        os.replace(_BUILD / MODULE, module)
        log.unlink(missing_ok=True)
        return module


def _run_cmake(log: IO[str]) -> None:
    env = os.environ.copy()
    env["PATH"] = os.pathsep.join([env.get("PATH", os.defpath), str(_TOOLS / "bin")])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(_TOOLS)]))
    nanobind = _tools(env, log)
    inputs = [
        *("-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}"),
        f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja', path=env['PATH'])}",
    ]
    # CMake remembers what it found, and for good that it found nothing.
    flags = {name: env.get(name) for name in ("CXX", "CXXFLAGS", "LDFLAGS")}
    known, inputs_now = _BUILD / "inputs.json", json.dumps([inputs, flags])
    if not (known.exists() and known.read_text(encoding="utf-8") == inputs_now):
        known.unlink(missing_ok=True)
        (_BUILD / "CMakeCache.txt").unlink(missing_ok=True)
    _run(["cmake", "-S", str(_ROOT), "-B", str(_BUILD), *inputs], env, log)
    known.write_text(inputs_now, encoding="utf-8")
    _run(["cmake", "--build", str(_BUILD)], env, log)
    _run(["cmake", "--install", str(_BUILD), "--prefix", str(_BUILD / "stage")], env, log)


def _tools(env: dict[str, str], log: IO[str]) -> str:
    """Installs what is missing. Returns where nanobind's CMake files are."""
    find_nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    found = subprocess.run(find_nanobind, env=env, capture_output=True, text=True, check=False)
    missing = [name for name in ("cmake", "ninja") if not shutil.which(name, path=env["PATH"])]
    if found.returncode != 0:
        missing.append("nanobind")
    if missing:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(_TOOLS)]
        _run([*pip, *missing], env, log, failed=f"pip could not install {', '.join(missing)}")
        found = subprocess.run(find_nanobind, env=env, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _run(command: list[str], env: dict[str, str], log: IO[str], failed: str | None = None) -> None:
    """Raises `BuildFailed`, for the reason given or the one that the output shows."""
    start = log.tell()
    print("$", *command, file=log, flush=True)
    result = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)
    log.seek(0, os.SEEK_END)
    if result.returncode != 0:
        log.seek(start)
        raise BuildFailed(failed or _reason(log.read()))


def _reason(output: str) -> str:
    # CMake breaks the lines of its messages, and indents them.
    if ours := re.search(r"^  headway: (.+(?:\n  \S.*)*)", output, re.MULTILINE):
        return " ".join(ours[1].split())
    if error := re.search(r"^.*\berror: .*$", output, re.MULTILINE):
        return f"they do not compile: {error[0].replace(f'{_ROOT}/', '')}"
    return "CMake failed"


if __name__ == "__main__":
    built = build()
    print((_BUILD / "log").read_text(encoding="utf-8"), end="")
    print(f"headway: {built}")
    sys.exit(built.name != MODULE)
