"""Models of the Hugging Face hub: fetched by its own client, kept in its own cache.

So a model that another program fetched is used as it lies there, and an access token, a mirror
(`HF_ENDPOINT`) or offline mode (`HF_HUB_OFFLINE`) work as for everyone else. The client is
imported where it is used: that takes a third of a second, and most starts need no hub.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import ModelError, ModelNotFound, UnsupportedModel

__all__ = ["HubId", "HubModel", "cached_hub_models", "fetch", "find", "hub_cache", "repo_of"]

_ID = re.compile(r"([A-Za-z0-9_-][\w.-]*/[\w.-]+)(?::([\w./-]+))?", re.ASCII)
_TIMEOUT_S = 10.0

_DIRECTORY = ""
"""The model is the snapshot as a whole, no one file of it."""
_BESIDE_THE_WEIGHTS = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }
)
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_QUANTISATION = re.compile(r"(?:^|[-._/])((?:i?q\d|tq\d|mxfp4|bf16|fp?16|fp?32)\w*)\.gguf$", re.I)
_NO_LANGUAGE_MODEL = ("mmproj", "imatrix")


@dataclass(frozen=True, slots=True)
class HubId:
    """`org/name`, or `org/name:Q4_K_M` for one file of a repository of GGUF files."""

    repo: str
    variant: str | None = None
    """A quantisation or a file's name."""

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        """None for what cannot be an id, such as the path of a .gguf file."""
        match = _ID.fullmatch(text)
        if match is None or match[1].lower().endswith(".gguf"):
            return None
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return self.repo if self.variant is None else f"{self.repo}:{self.variant}"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model in the hub's cache."""

    id: HubId
    """Its shortest: without a variant where there is no choice."""
    revision: str | None
    """Branch, tag or commit; None is the main branch."""
    path: Path


def hub_cache(cache_dir: Path | None) -> Path:
    """`cache_dir`, else the client's own: `$HF_HUB_CACHE`, `$HF_HOME/hub`, or the usual place."""
    from huggingface_hub import constants  # noqa: PLC0415

    return cache_dir or Path(constants.HF_HUB_CACHE)


def fetch(
    hub_id: HubId,
    *,
    revision: str | None,
    cache_dir: Path | None,
    progress: Callable[[str], None],
) -> Path:
    """The path of a model's file or directory, brought up to date with the hub.

    Of a repository only what runs the model is fetched; a progress bar shows on a terminal.
    When the hub cannot be reached, or refuses, what is cached is taken, and `progress` told.

    Raises:
        ModelNotFound: no such repository or revision, or none that the user may see.
        ModelError: it is not cached and cannot be fetched, it holds several models, or it is
            gated; `UnsupportedModel`: it holds none of a kind that is read here.
    """
    from huggingface_hub import HfApi, constants, snapshot_download  # noqa: PLC0415

    try:
        info = HfApi().model_info(
            hub_id.repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
        files, model = _select(hub_id, hub_id.repo, sizes)
        snapshot = _snapshot(hub_id.repo, revision, cache_dir)
        if snapshot and snapshot.name == info.sha and all((snapshot / f).exists() for f in files):
            return snapshot / model
        total = sum(sizes[file] for file in files)
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        progress(f"downloading {hub_id} from the hub ({count}, {total / 1e6:,.0f} MB)")
        with _byte_bars() as bar:
            folder = snapshot_download(
                hub_id.repo,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=[glob.escape(file) for file in files],
                tqdm_class=bar,
            )
    except ModelError:
        raise
    # The client's network errors are those of whichever HTTP library its version uses.
    except Exception as error:
        if found := _found(hub_id, revision, cache_dir):
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _line(error)
            progress(f"using {hub_id} as it is cached: {why}")
            return found
        raise _explained(hub_id, revision, cache_dir, error) from error
    return Path(folder) / model


@contextmanager
def _byte_bars() -> Iterator[type[Any]]:
    """The client's progress bars, those of bytes alone and on a terminal alone, gone at the end:
    it leaves some open, under what is written next."""
    from huggingface_hub.utils.tqdm import tqdm  # noqa: PLC0415

    bars = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs |= {"disable": None if kwargs.get("unit") == "B" else True, "leave": False}
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
            bars.append(self)

    try:
        yield Bar
    finally:
        for bar in reversed(bars):  # the lowest first: the cursor ends where it began
            bar.close()


def find(hub_id: HubId, *, revision: str | None, cache_dir: Path | None) -> Path:
    """The path of a model in the hub's cache; asks no network. Raises `ModelNotFound`."""
    if found := _found(hub_id, revision, cache_dir):
        return found
    at = "" if revision is None else f" at revision {revision!r}"
    raise ModelNotFound(
        f"{hub_id}{at} is not in {hub_cache(cache_dir)}; `headway pull {hub_id}` fetches it"
    )


def cached_hub_models(cache_dir: Path | None) -> Iterator[HubModel]:
    """What looks like a model in the hub's cache, whether it would run or not, by repository."""
    for folder in sorted(hub_cache(cache_dir).glob("models--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        refs = {
            path.read_text(errors="replace").strip(): path.relative_to(folder / "refs").as_posix()
            for path in sorted((folder / "refs").rglob("*"), reverse=True)
            if path.is_file()
        }
        for snapshot in sorted((folder / "snapshots").glob("*")):
            revision = refs.get(snapshot.name, snapshot.name)
            names = _names(snapshot)
            for variant, path in _models(names):
                main = revision == "main"
                yield HubModel(HubId(repo, variant), None if main else revision, snapshot / path)


def repo_of(path: Path) -> str | None:
    """`org/name` for a snapshot in a hub cache, else None."""
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/", 1)
    return None


# ------------------------------------------------------- what a repository holds


def _select(hub_id: HubId, where: str, names: Collection[str]) -> tuple[list[str], str]:
    """The files to fetch of a repository, and the path in it that is the model.

    Without a variant: the safetensors model if there is one, else the one .gguf file.
    """
    if hub_id.variant is None and (weights := _safetensors(names)):
        needed = _BESIDE_THE_WEIGHTS | weights
        return [name for name in names if name in needed], _DIRECTORY
    every = _ggufs(names)
    fitting = every if hub_id.variant is None else _fitting(hub_id.variant, every)
    if any(_SPLIT.search(name) for name in fitting) and len({_whole(n) for n in fitting}) == 1:
        raise UnsupportedModel(
            f"{where}: {fitting[0]} is split over several files, which does not work yet"
        )
    if len(fitting) == 1:
        return [fitting[0]], fitting[0]
    choices = ", ".join(f"{hub_id.repo}:{_variant(name, every)}" for name in fitting or every)
    if fitting:
        raise ModelError(f"{where} holds several models; name one of them: {choices}")
    if every:
        raise ModelNotFound(f"{where} has no .gguf file for {hub_id.variant!r}; it has: {choices}")
    raise UnsupportedModel(
        f"{where} holds no model that is read here: config.json with *.safetensors, or a .gguf "
        f"file{_instead(names)}"
    )


def _models(names: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """Variant and relative path of each model among a snapshot's files."""
    if has_directory := bool(_safetensors(names)):
        yield None, _DIRECTORY
    every = _ggufs(names)
    for name in every:
        alone = len(every) == 1 and not has_directory
        yield None if alone else _variant(name, every), name


def _safetensors(names: Collection[str]) -> frozenset[str]:
    """The weight files of a safetensors model: all of them, or none."""
    if "config.json" not in names:
        return frozenset()
    if _WHOLE in names:
        return frozenset({_WHOLE})
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    if _INDEX in names and shards and len(shards) == int(shards[0][1]):
        return frozenset({_INDEX, *(match[0] for match in shards)})
    return frozenset()


def _ggufs(names: Collection[str]) -> list[str]:
    return sorted(
        name
        for name in names
        if name.endswith(".gguf") and not any(word in name for word in _NO_LANGUAGE_MODEL)
    )


def _fitting(variant: str, names: Sequence[str]) -> list[str]:
    """The file of that name, or those whose names have that quantisation in them."""
    if variant in names:
        return [variant]
    part = re.compile(rf"(?:^|[-._/]){re.escape(variant)}(?=[-./]|$)", re.I)
    return [name for name in names if part.search(name.removesuffix(".gguf"))]


def _variant(name: str, names: Sequence[str]) -> str:
    """The shortest that `_fitting` takes for this file alone."""
    match = _QUANTISATION.search(_whole(name))
    return match[1] if match and _fitting(match[1], names) == [name] else name


def _whole(name: str) -> str:
    """The name of what a split file is a part of."""
    return _SPLIT.sub(".gguf", name)


def _instead(names: Collection[str]) -> str:
    pickled = sorted(name for name in names if name.endswith((".bin", ".pth", ".pt")))
    if pickled:
        return f" (it has {pickled[0]}: pickled weights are never read, for safety)"
    return ""


# ------------------------------------------------------------------- the cache


def _snapshot(repo: str, revision: str | None, cache_dir: Path | None) -> Path | None:
    """The cached directory of a revision, as far as it was fetched."""
    folder = hub_cache(cache_dir) / f"models--{repo.replace('/', '--')}"
    ref = folder / "refs" / (revision or "main")
    commit = ref.read_text().strip() if ref.is_file() else revision
    snapshot = folder / "snapshots" / commit if commit else None
    return snapshot if snapshot and snapshot.is_dir() else None


def _names(snapshot: Path) -> list[str]:
    files = (path for path in snapshot.rglob("*") if path.is_file())
    return sorted(path.relative_to(snapshot).as_posix() for path in files)


def _found(hub_id: HubId, revision: str | None, cache_dir: Path | None) -> Path | None:
    snapshot = _snapshot(hub_id.repo, revision, cache_dir)
    if snapshot is None:
        return None
    try:
        _, model = _select(hub_id, f"what is cached of {hub_id.repo}", _names(snapshot))
    except (ModelNotFound, UnsupportedModel):
        return None
    return snapshot / model


def _explained(
    hub_id: HubId, revision: str | None, cache_dir: Path | None, error: Exception
) -> ModelError:
    """What went wrong and what would work."""
    from huggingface_hub import constants, errors  # noqa: PLC0415

    repo, endpoint = hub_id.repo, constants.ENDPOINT
    access = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{repo} is gated: accept its terms at {endpoint}/{repo}, then {access}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(
            f"{repo!r} is neither a path here nor a model on {endpoint} that you may see: check "
            f"its spelling; if it is private, {access}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(f"{repo} has no revision {revision or 'main'!r}")
    missing = f"{hub_id} is not in {hub_cache(cache_dir)}"
    if constants.HF_HUB_OFFLINE:
        return ModelNotFound(
            f"{missing}, and HF_HUB_OFFLINE is set: unset it to fetch the model, or give a path"
        )
    return ModelError(
        f"{missing} and cannot be fetched from {endpoint}: {_line(error)}; try again, or give the "
        f"path of a model"
    )


def _line(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__
