"""Models of the hub, with its real client and a server of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from headway.errors import InvalidConfig, ModelError, ModelNotFound, UnsupportedModel
from headway.models.hub import HubId
from headway.models.sources import cached_models, model_name, pull, resolve_model
from unit.models.hub_server import HubServer, Repo, hub_server

CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
LLAMA = {
    "README.md": b"# tiny",
    "config.json": CONFIG,
    "generation_config.json": b'{"eos_token_id": 2}',
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "model.safetensors.index.json": b'{"weight_map": {}}',
    "consolidated.safetensors": b"the same once more",
    "pytorch_model.bin": b"pickled",
    "original/consolidated.00.pth": b"pickled",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b'{"bos_token": null}',
    "chat_template.jinja": b"{{ messages }}",
}
NEEDED = sorted(
    name
    for name in LLAMA
    if name not in ("README.md", "consolidated.safetensors", "pytorch_model.bin")
    and not name.startswith("original/")
)
GGUFS = {
    "README.md": b"# quantised",
    "tiny-Q4_K_M.gguf": b"GGUF four" * 100,
    "tiny-Q4_K_S.gguf": b"GGUF small four" * 100,
    "tiny-Q8_0.gguf": b"GGUF eight" * 100,
    "tiny-UD-IQ4_NL.gguf": b"GGUF other four" * 100,
    "BF16/tiny-BF16-00001-of-00002.gguf": b"GGUF a",
    "BF16/tiny-BF16-00002-of-00002.gguf": b"GGUF b",
    "mmproj-F16.gguf": b"GGUF of a camera",
}
REPOS = {
    "org/llama": Repo({"main": LLAMA, "v1": LLAMA | {"config.json": b'{"old": true}'}}),
    "org/one-GGUF": Repo({"main": {"README.md": b"", "one-q5_0.gguf": b"GGUF one"}}),
    "org/many-GGUF": Repo({"main": GGUFS}),
    "org/gated": Repo({"main": {"config.json": CONFIG, "model.safetensors": b"x"}}, gated=True),
    "org/pickled": Repo({"main": {"config.json": CONFIG, "pytorch_model.bin": b"pickled"}}),
    "org/split": Repo({"main": {f"m-Q8_0-0000{i}-of-00002.gguf": b"GGUF" for i in (1, 2)}}),
}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with hub_server(dict(REPOS)) as server:
        yield server


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The client takes this server for the hub, and an empty directory for its cache."""
    for name in ("HEADWAY_CACHE_DIR", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    huggingface_hub.close_session()


def unplug(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing listens where the hub was."""
    server.requests.clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_of_a_safetensors_repository_only_what_runs_the_model_is_fetched(hub: HubServer) -> None:
    said: list[str] = []
    path = resolve_model("org/llama", progress=said.append)
    assert names(path) == NEEDED
    assert hub.fetched() == NEEDED
    assert (path / "model-00002-of-00002.safetensors").read_bytes() == b"second" * 1000
    assert model_name(path) == "org/llama"
    assert said == ["downloading org/llama from the hub (8 files, 0 MB)"]


def test_what_is_cached_is_not_fetched_again_and_an_update_is(hub: HubServer) -> None:
    path = resolve_model("org/llama")
    hub.requests.clear()
    said: list[str] = []
    assert resolve_model("org/llama", progress=said.append) == path
    assert (hub.fetched(), said) == ([], [])
    hub.repos["org/llama"] = Repo({"main": LLAMA | {"config.json": b"{}"}})
    newer = resolve_model("org/llama", progress=said.append)
    assert (newer / "config.json").read_bytes() == b"{}"
    assert len(said) == 1
    assert hub.fetched() == ["config.json"]


def test_a_revision_is_a_branch_or_a_commit(hub: HubServer) -> None:
    commit = hub.repos["org/llama"].commit("v1")
    path = resolve_model("org/llama", revision="v1")
    assert path.name == commit
    assert (path / "config.json").read_bytes() == b'{"old": true}'
    assert resolve_model("org/llama", revision=commit) == path
    with pytest.raises(ModelNotFound, match="org/llama has no revision 'v2'"):
        resolve_model("org/llama", revision="v2")


@pytest.mark.parametrize("model", ["SmolLM2-135M-Instruct", "."])
def test_a_revision_of_what_is_not_the_hubs_is_refused(hub: HubServer, model: str) -> None:
    with pytest.raises(InvalidConfig, match="revision: is for models from the hub"):
        resolve_model(model, revision="main")


def test_without_a_network_what_is_cached_is_used_and_said(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve_model("org/llama")
    file = resolve_model("org/many-GGUF:Q8_0")
    unplug(hub, monkeypatch)
    said: list[str] = []
    assert resolve_model("org/llama", progress=said.append) == path
    assert resolve_model("org/many-GGUF:q8_0") == file
    assert len(said) == 1
    assert said[0].startswith("using org/llama as it is cached: ConnectError")


def test_a_hub_that_is_down_is_no_obstacle_either(hub: HubServer) -> None:
    path = resolve_model("org/llama")
    hub.broken = True
    assert resolve_model("org/llama") == path


def test_without_a_network_what_is_not_cached_is_told_as_such(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolve_model("org/many-GGUF:Q8_0")
    unplug(hub, monkeypatch)
    for model in ("org/llama", "org/many-GGUF:Q4_K_M"):
        with pytest.raises(ModelError) as caught:
            resolve_model(model)
        assert f"{model} is not in {tmp_path / 'hub'} and cannot be fetched" in str(caught.value)
        assert "ConnectError" in str(caught.value)


def test_half_a_download_is_not_taken_for_the_model(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (resolve_model("org/llama") / "model-00001-of-00002.safetensors").unlink()
    unplug(hub, monkeypatch)
    with pytest.raises(ModelError, match=r"org/llama is not in .* and cannot be fetched"):
        resolve_model("org/llama")


def test_offline_mode_asks_nobody(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve_model("org/llama")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    hub.requests.clear()
    assert resolve_model("org/llama") == path
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE is set: unset it"):
        resolve_model("org/one-GGUF")
    assert hub.requests == []


def test_asked_for_local_files_no_network_is_used(hub: HubServer) -> None:
    with pytest.raises(ModelNotFound, match="`headway pull org/one-GGUF` fetches it"):
        resolve_model("org/one-GGUF", local_files_only=True)
    assert hub.requests == []
    path = pull("org/one-GGUF")
    assert resolve_model("org/one-GGUF", local_files_only=True) == path


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("org/one-GGUF", "one-q5_0.gguf"),
        ("org/one-GGUF:Q5_0", "one-q5_0.gguf"),
        ("org/many-GGUF:Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("org/many-GGUF:q8_0", "tiny-Q8_0.gguf"),
        ("org/many-GGUF:IQ4_NL", "tiny-UD-IQ4_NL.gguf"),
        ("org/many-GGUF:UD-IQ4_NL", "tiny-UD-IQ4_NL.gguf"),
        ("org/many-GGUF:tiny-Q8_0.gguf", "tiny-Q8_0.gguf"),
    ],
)
def test_of_ggufs_the_one_that_is_meant_is_fetched(hub: HubServer, model: str, file: str) -> None:
    path = resolve_model(model)
    assert path.name == file
    assert path.read_bytes() == hub.repos[model.partition(":")[0]].revisions["main"][file]
    assert hub.fetched() == [file]


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("org/many-GGUF", ModelError, "several models; name one of them: .*org/many-GGUF:Q8_0"),
        ("org/many-GGUF:Q4_K", ModelNotFound, "no .gguf file for 'Q4_K'; it has: .*:Q4_K_M"),
        ("org/many-GGUF:BF16", UnsupportedModel, "split over several files"),
        ("org/split", UnsupportedModel, "split over several files"),
        ("org/pickled", UnsupportedModel, "pytorch_model.bin: pickled weights are never read"),
        ("org/llama:Q8_0", UnsupportedModel, "org/llama holds no model that is read here"),
        ("org/absent", ModelNotFound, "'org/absent' is neither a path here nor a model on http"),
        ("org/gated", ModelError, "org/gated is gated: accept its terms at http.*HF_TOKEN"),
    ],
)
def test_what_cannot_be_fetched_says_what_would_work(
    hub: HubServer, model: str, kind: type[ModelError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        resolve_model(model)
    assert hub.fetched() in ([], ["config.json", "model.safetensors"])


def test_a_token_opens_what_is_gated(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert names(resolve_model("org/gated")) == ["config.json", "model.safetensors"]


def test_a_path_that_looks_like_an_id_is_a_path(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "org" / "llama").mkdir(parents=True)
    assert resolve_model("org/llama") == Path("org/llama")
    assert hub.requests == []


def test_the_cache_lists_what_can_be_named(hub: HubServer, tmp_path: Path) -> None:
    for model in ("org/llama", "org/one-GGUF", "org/many-GGUF:Q8_0", "org/many-GGUF:Q4_K_M"):
        resolve_model(model)
    resolve_model("org/llama", revision="v1")
    (tmp_path / "hub" / "models--org--nothing" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--org--data" / "snapshots" / "abc").mkdir(parents=True)
    listed = cached_models()
    assert [(model.name, model.revision) for model in listed] == [
        ("org/llama", None),
        ("org/llama", "v1"),
        ("org/many-GGUF:Q4_K_M", None),
        ("org/many-GGUF:Q8_0", None),
        ("org/one-GGUF", None),
    ]
    for model in listed:
        path = resolve_model(model.name, revision=model.revision, local_files_only=True)
        assert path == model.path
    assert listed[3].size_bytes == len(GGUFS["tiny-Q8_0.gguf"])


def test_a_cache_directory_of_ones_own_keeps_the_hubs_models_too(
    hub: HubServer, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    path = resolve_model("org/one-GGUF", cache_dir=own)
    assert path.is_relative_to(own / "hub")
    assert not (tmp_path / "hub").exists()
    assert [model.name for model in cached_models(own)] == ["org/one-GGUF"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("org/name", HubId("org/name")),
        ("org/name:Q4_K_M", HubId("org/name", "Q4_K_M")),
        ("Org-1/na.me_2:UD-Q4_K_XL", HubId("Org-1/na.me_2", "UD-Q4_K_XL")),
        ("name", None),
        ("./org/name", None),
        ("../name", None),
        ("/org/name", None),
        ("a/b/c", None),
        ("models/my.gguf", None),
        ("https://huggingface.co/org/name", None),
        ("org/name:", None),
        ("org/na me", None),
        ("", None),
    ],
)
def test_an_id_is_told_from_a_path(text: str, parsed: HubId | None) -> None:
    assert HubId.parse(text) == parsed


def test_pull_as_a_command_with_the_clients_own_variables(
    server: HubServer, tmp_path: Path
) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "HEADWAY_CACHE_DIR" and not name.startswith("HF_")
    }
    environment |= {
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path),
        "NO_PROXY": "127.0.0.1",
    }

    def pull(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headway", "pull", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    result = pull("org/many-GGUF:Q8_0")
    assert result.returncode == 0, result.stderr
    path = Path(result.stdout.strip())
    assert path.read_bytes() == GGUFS["tiny-Q8_0.gguf"]
    assert path.is_relative_to(tmp_path / "hub")
    assert result.stderr == "downloading org/many-GGUF:Q8_0 from the hub (1 file, 0 MB)\n"
    result = pull("org/absent")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("headway: error: 'org/absent' is neither a path here nor")
    assert len(result.stderr.splitlines()) == 1
