"""Plants each fault of `planted.py` in a copy of the source and requires that the soak finds it.

python tests/mutations/run.py             all of them, each with its seed
python tests/mutations/run.py --search    trials from seed 0 on: the first seed that finds it
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from mutations.planted import MUTATIONS, Mutation

__all__ = ["Finding", "find_all"]

SOURCE = Path(__file__).parents[2] / "src" / "headway"
ROOMS = ("core", "sim")
MODULES = ("__init__.py", "clock.py", "errors.py", "metrics.py")
SOAK = "import sys; from headway.sim.soak import run_soak; sys.exit(run_soak({steps}, {seed}))"
SEARCH_STEPS = 200_000
TIMEOUT_S = 300.0


class Finding(NamedTuple):
    mutation: Mutation
    seed: int | None
    """Of the trial that failed; None: none did."""
    what: str
    """The failure, or why there is none."""


def find_all(mutations: Sequence[Mutation], *, search: bool = False) -> Iterator[Finding]:
    """What the soak says of each."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield from pool.map(lambda mutation: _find(mutation, search), mutations)


def _find(mutation: Mutation, search: bool) -> Finding:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "headway"
        copy.mkdir()
        for room in ROOMS:
            shutil.copytree(SOURCE / room, copy / room)
        for module in MODULES:
            shutil.copy2(SOURCE / module, copy)
        path = copy / "core" / mutation.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(mutation.old)) != 1:
            return Finding(mutation, None, f"{mutation.old!r} stands {count} times in the file")
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        finding = _soak(mutation, directory, num_steps=1, seed=mutation.seed)
        if finding.seed is None and search:
            finding = _soak(mutation, directory, num_steps=SEARCH_STEPS, seed=0)
    return finding


def _soak(mutation: Mutation, directory: str, *, num_steps: int, seed: int) -> Finding:
    """Runs it on the package in `directory`, in a process of its own: without `site`, whose hook
    for an editable installation would come before PYTHONPATH."""
    path = os.pathsep.join((directory, sysconfig.get_path("purelib")))
    try:
        result = subprocess.run(
            [sys.executable, "-S", "-c", SOAK.format(steps=num_steps, seed=seed)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Finding(mutation, None, "did not end")
    failure = re.search(r"^trial (\d+) failed: (.*)$", result.stdout, re.MULTILINE)
    if failure is None:
        return Finding(mutation, None, (result.stdout + result.stderr).strip()[-200:])
    return Finding(mutation, int(failure[1]), failure[2])


def main(arguments: Sequence[str]) -> int:
    missed = 0
    for number, (mutation, seed, what) in enumerate(
        find_all(MUTATIONS, search="--search" in arguments), 1
    ):
        missed += seed is None
        found = "not found" if seed is None else f"seed {seed}"
        print(f"{number:3} {mutation.rule:4} {mutation.file:16} {found:12} {what}", flush=True)
    print(f"{len(MUTATIONS) - missed} of {len(MUTATIONS)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
