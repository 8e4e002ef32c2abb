"""Runs `scripts/start` in a copy of the project, with a real Python or a pretended one.

The environments of the pretended Python are real but for pip and pytest, which only note
what they are asked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = [
    "PYTHON",
    "ROOT",
    "VERSION",
    "Project",
    "project_with",
    "pretended_python",
    "report",
    "file_of",
    "write_program",
    "wait_for_line",
    "kill",
]

ROOT = Path(__file__).parents[1]
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = Path(sys.base_prefix, "bin", f"python{VERSION}")
TOOLS = ("sh", "dirname", "cat", "rm", "mv")
"""All that the script may use beside Python; no make, no compiler."""

MAKE_VENV = """
import pathlib, sys, venv
target = pathlib.Path(sys.argv[-1])
venv.create(target, clear="--clear" in sys.argv, symlinks=True)
with (target.parent / "calls").open("a") as calls:
    print('["venv"]', file=calls)
packages = next(target.glob("lib/python*/site-packages"))
for name in ("pip", "pytest"):
    (packages / name).mkdir(exist_ok=True)
    (packages / name / "__main__.py").write_text(pathlib.Path(__file__).with_name(name).read_text())
(packages / "pip-99.dist-info").mkdir(exist_ok=True)
(packages / "pip-99.dist-info" / "METADATA").write_text("Name: pip\\nVersion: 99\\n")
(packages / "pip-99.dist-info" / "INSTALLER").touch()
"""
PIP = """
import json, os, pathlib, sys
assert sys.flags.isolated, "PYTHONPATH reaches the installation"
assert os.environ["PIP_USER"] == "0", "the user's own packages are in reach"
assert "--require-virtualenv" in sys.argv, "another Python's packages are in reach"
venv, arguments = pathlib.Path(sys.prefix), sys.argv[4:]
with (venv.parent / "calls").open("a") as calls:
    print(json.dumps(arguments), file=calls)
if os.environ.get("FAIL_AT") in arguments:
    sys.exit("no such package")
if "--report" in arguments:
    pathlib.Path(arguments[arguments.index("--report") + 1]).write_text(os.environ["REPORT"])
elif os.environ.get("HANG_AT") in arguments:
    next(venv.glob("lib/python*/site-packages")).joinpath("half-1.dist-info").mkdir()
    print("hanging", file=sys.stderr, flush=True)
    sys.stdin.read()
elif "-e" in arguments:
    program = venv / "bin" / "headway"
    program.write_text('#!/bin/sh\\nprintf "<%s>" headway "$@" >&2\\n')
    program.chmod(0o755)
"""
PYTEST = """
import os, sys
print("".join(f"<{word}>" for word in ["pytest", *sys.argv[1:], os.getcwd()]))
"""


@dataclass
class Project:
    """A copy of the project, and the environment that its script runs in."""

    root: Path
    env: dict[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [shutil.which("sh") or "/bin/sh", str(self.root / "scripts" / "start"), *arguments]

    def run(
        self, *arguments: str, timeout_s: float = 60, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Like `run`, in a process group of its own and with a standard input that stays open."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def site_packages(self) -> Path:
        (path,) = self.root.glob(".venv/lib/python*/site-packages")
        return path

    def calls(self) -> list[list[str]]:
        """What was asked of the pretended venv and pip since the last time."""
        path = self.root / "calls"
        calls = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        path.unlink(missing_ok=True)
        return calls


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def project_with(directory: Path, python: str) -> Project:
    """A copy of the project under the directory, and a PATH with the tools and this `python3`.

    `python` is the text of a shell script.
    """
    tools = directory / "tools"
    tools.mkdir()
    for name in TOOLS:
        program = shutil.which(name)
        assert program, f"these tests need {name}"
        (tools / name).symlink_to(program)
    write_program(tools / "python3", python)
    ours = ("PYTHON", "PYTEST", "VIRTUAL_ENV", "TORCH_INDEX_URL", "MAKE", "COV_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "_kernels.*.so", "_kernels.*.log")
    root = shutil.copytree(ROOT, directory / "a project", ignore=hidden)
    return Project(Path(root), env | {"PATH": str(tools)})


def pretended_python(directory: Path) -> str:
    """The script of a Python whose environments hold the pretended pip and pytest."""
    directory.mkdir()
    for name, text in (("make_venv.py", MAKE_VENV), ("pip", PIP), ("pytest", PYTEST)):
        (directory / name).write_text(text)
    return f"""
if [ "$1 $2" = "-m venv" ]; then
  exec "{PYTHON}" "{directory}/make_venv.py" "$@"
fi
exec "{PYTHON}" "$@"
"""


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Reads standard error up to a line that holds the text."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return
    pytest.fail(f"ended before {text!r}:\n{''.join(lines)}")


def kill(process: subprocess.Popen[str]) -> None:
    """Ends the script and all that it started, without a chance to tidy up."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def report(**sizes: Path | str) -> str:
    """pip's report of an installation of these packages from these files or addresses."""
    return json.dumps(
        {
            "install": [
                {
                    "metadata": {"name": name, "version": "2.13.0+cpu"},
                    "download_info": {"url": at if isinstance(at, str) else at.as_uri()},
                }
                for name, at in sizes.items()
            ]
        }
    )


def file_of(path: Path, num_bytes: int) -> Path:
    path.touch()
    os.truncate(path, num_bytes)
    return path
