"""What happens between the first signs of life and the first request, on both sides at once.

    engine's process   imports PyTorch ─────────────▶ loads the weights ─▶ Ready ─┐
    this process       fetches and opens the model ─┘ tokenizer, template ────────┴▶ application

PyTorch is not imported here, and no weights are read: the tokenizer, the chat template and the
defaults of sampling are all that the server needs of a model.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.types import ASGIApp

from headway.config import EngineArgs, resolve_speculation
from headway.engine.collector import set_aside_loaded
from headway.errors import InvalidConfig
from headway.models.sources import Progress, model_name, resolve_model
from headway.models.weights import open_model
from headway.server.app import create_app
from headway.server.generation import ServedModel
from headway.server.memory import drop_errors, hold_less_memory
from headway.server.process.messages import Ready
from headway.server.process.remote import EngineObservers, RemoteEngine
from headway.server.settings import ServerSettings
from headway.server.watch.telemetry import Telemetry
from headway.text.chat_template import PromptTemplate, UnusableTemplate, template_of
from headway.text.tokenizer import Tokenizer

__all__ = ["load_application"]

T = TypeVar("T")


async def load_application(
    engine: RemoteEngine,
    args: EngineArgs,
    settings: ServerSettings,
    telemetry: Telemetry,
    *,
    say: Progress,
    created: int,
) -> tuple[ASGIApp, ServedModel]:
    """Opens the model here, has the engine load it there, and composes the API over both.

    `say` gets lines for a person; `created` is the Unix time that `/v1/models` gives.

    Raises InvalidConfig, ModelError or EngineDead.
    """
    opened = await _in_thread(lambda: _open(args, settings, say))
    telemetry.model_opened(opened.names[0], by_tenant=args.scheduling_policy == "fair")
    observers = EngineObservers(
        started=lambda ready: telemetry.engine_started(ready.cache),
        lost=telemetry.engine_lost,
        stats=telemetry.observe,
        progress=say,
    )
    # By its path: the engine's process must not fetch it too.
    args = replace(args, model=str(opened.path), revision=None)
    ready = await engine.start(args, observers)
    say(ready.banner)
    model = opened.served(ready, created)
    set_aside_loaded()
    hold_less_memory()
    return create_app(engine, model, metrics=telemetry.render, tidy=drop_errors), model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A `ServedModel` but for what its engine decides."""

    path: Path
    names: tuple[str, ...]
    tokenizer: Tokenizer
    chat_template: PromptTemplate | None
    sampling_defaults: Mapping[str, Any]
    tool_call_parser: str

    def served(self, ready: Ready, created: int) -> ServedModel:
        return ServedModel(
            names=self.names,
            created=created,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            sampling_defaults=self.sampling_defaults,
            max_model_len=ready.max_model_len,
            exactness=ready.exactness,
            tool_call_parser=self.tool_call_parser,
        )


def _open(args: EngineArgs, settings: ServerSettings, say: Progress) -> _Opened:
    resolve_speculation(args)  # before anything is fetched in vain
    cache_dir = None if args.cache_dir is None else Path(args.cache_dir).expanduser()
    path = resolve_model(args.model, cache_dir=cache_dir, progress=say, revision=args.revision)
    model = open_model(path)
    tokenizer = model.tokenizer()
    return _Opened(
        path=path,
        names=settings.served_model_name or (model_name(path),),
        tokenizer=tokenizer,
        chat_template=_template(model.chat_template, settings, tokenizer),
        sampling_defaults=model.sampling_defaults if args.generation_config == "auto" else {},
        tool_call_parser=settings.tool_call_parser,
    )


def _template(
    own: str | None, settings: ServerSettings, tokenizer: Tokenizer
) -> PromptTemplate | None:
    """The operator's, which must be usable, or else the model's, of which the engine's process
    tells when it is not."""
    given = settings.chat_template_text()
    template = template_of(own if given is None else given, tokenizer)
    if given is not None and isinstance(template, UnusableTemplate):
        raise InvalidConfig("chat_template", template.reason)
    return template


async def _in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Neither whoever is cancelled while it waits, nor the end of
    the process, waits for the thread: it may be fetching a model."""
    done = Future[T]()
    done.set_running_or_notify_cancel()  # it goes on to its end, also where nobody waits any more

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="headway-open-model", daemon=True).start()
    return await asyncio.wrap_future(done)
