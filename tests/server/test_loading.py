"""What the server makes of a model: its names, and the template of its prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from headway.config import EngineArgs
from headway.engine.exactness import Exactness
from headway.errors import InvalidConfig
from headway.server.process import loading
from headway.server.process.messages import Ready
from headway.server.settings import ServerSettings
from headway.server.watch.stats import CacheInfo
from headway.server.watch.telemetry import Telemetry
from server.fake_engine import FakeEngine

READY = Ready(100, Exactness(False, "not probed"), CacheInfo(16, 10, 1000, "int8", True), "Tiny")
OWN = "{% for message in messages %}({{ message.content }}){% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


class Process(FakeEngine):
    """Starts as the engine's process does."""

    async def start(self, args: EngineArgs, observers: object) -> Ready:  # type: ignore[override]
        return READY


class Files:
    """Those of a model."""

    chat_template = OWN
    sampling_defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def tokenizer(self) -> object:
        return self._engine.model.tokenizer


class Served:
    """A server of that model, with these settings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.engine = Process()
        monkeypatch.setattr(loading, "resolve_model", lambda name, **_: Path("a-model"))
        monkeypatch.setattr(loading, "open_model", lambda _: Files(self.engine))
        # They are for a process of its own.
        monkeypatch.setattr(loading, "set_aside_loaded", lambda: None)
        monkeypatch.setattr(loading, "hold_less_memory", lambda: None)
        given = ServerSettings(**settings)
        self._app, _ = asyncio.run(
            loading.load_application(
                self.engine,  # type: ignore[arg-type]
                EngineArgs(),
                given,
                Telemetry(given, now=lambda: 0.0, epoch_s=0.0),
                say=lambda _: None,
                created=1,
            )
        )

    def ask(self, path: str, body: object = None) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                method = "GET" if body is None else "POST"
                return await client.request(method, path, json=body)

        return asyncio.run(request())

    def prompt(self) -> str:
        """That of a conversation."""
        assert self.ask("/v1/chat/completions", CHAT).status_code == 200
        return "".join(map(chr, self.engine.added.get_nowait().prompt_token_ids))


def test_a_model_is_called_by_each_name_that_it_is_given_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(monkeypatch, served_model_name=("first", "org/second"))
    assert [card["id"] for card in served.ask("/v1/models").json()["data"]] == [
        *("first", "org/second")
    ]
    assert served.ask("/v1/models/org/second").json()["id"] == "org/second"
    for name in ("first", "org/second"):
        for path, body in {
            "/v1/completions": {"prompt": "hi", "max_tokens": 1},
            "/v1/chat/completions": CHAT,
            "/v1/responses": {"input": "hi", "max_output_tokens": 1},
            "/v1/messages": CHAT,
        }.items():
            answer = served.ask(path, body | {"model": name})
            assert (answer.status_code, answer.json()["model"]) == (200, "first"), (path, name)
    assert served.ask("/v1/completions", {"prompt": "hi", "model": "a-model"}).status_code == 404


def test_a_model_without_a_given_name_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch)
    assert [card["id"] for card in served.ask("/v1/models").json()["data"]] == ["a-model"]


def test_the_template_of_a_file_takes_the_place_of_the_models_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    served = Served(monkeypatch, chat_template=str(file))
    assert served.prompt() == "[hi]"
    assert served.ask("/tokenizer_info").json()["chat_template"] == file.read_text()
    assert Served(monkeypatch).prompt() == "(hi)"


def test_a_template_of_a_file_that_cannot_be_used_keeps_the_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for message in messages %}")
    with pytest.raises(InvalidConfig, match=r"chat_template: .* does not compile: "):
        Served(monkeypatch, chat_template=str(file))
