"""An engine that answers from a script, as `AsyncEngine` would."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime

from headway.core.plan import ChunkError, TokenLogprobs
from headway.engine.exactness import Exactness
from headway.engine.outputs import NewRequest, OutputDelta
from headway.errors import EngineDead, RequestTooLarge
from headway.metrics import EngineState, Observer
from headway.text.chat_template import ChatTemplate

__all__ = ["HANG", "PLAIN", "FakeEngine", "Script", "delta"]

HANG = object()
"""In a script: nothing more comes until the request is aborted."""

Script = Callable[[NewRequest], Iterable[object]]
BOS = 1
NOW = datetime(2031, 5, 4)


def delta(
    text: str = "",
    *,
    tokens: Sequence[int] | None = None,
    finish: str | None = None,
    stop_reason: int | str | None = None,
    cached: int = 0,
    error: str | None = None,
    fields: Sequence[str] = (),
    logprobs: tuple[TokenLogprobs, ...] = (),
    prompt_logprobs: tuple[TokenLogprobs, ...] = (),
) -> OutputDelta:
    """One delta; its tokens are the characters of its text unless told otherwise."""
    ids = tuple(map(ord, text)) if tokens is None else tuple(tokens)
    why = None if error is None else ChunkError(error, tuple(fields))
    return OutputDelta("", text, ids, finish, stop_reason, cached, why, logprobs, prompt_logprobs)


class CharacterTokenizer:
    """A character is a token; `texts` are all that were ever encoded."""

    vocab_size = 0x110000
    bos_token_id = BOS
    bos_token = chr(BOS)
    eos_token_ids = (2,)
    eos_token = chr(2)
    special_texts: tuple[str, ...] = (chr(BOS),)

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.most_characters = 10_000_000
        """Of a text; more do not fit any context."""

    def encode(
        self, text: str, *, add_special_tokens: bool = True, at_most: int | None = None
    ) -> list[int]:
        if at_most is not None and len(text) > self.most_characters:
            raise RequestTooLarge("prompt", "it cannot fit")
        self.texts.append(text)
        return [BOS] * add_special_tokens + [ord(character) for character in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if not all(0 <= token < self.vocab_size for token in ids):
            raise ValueError("there is no such token")
        return "".join(chr(token) for token in ids if not (skip_special_tokens and token == BOS))

    def is_special(self, token_id: int) -> bool:
        return token_id == BOS

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}" + (
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class FakeModel:
    """Stands for a `ServedModel`, of which a test may change what it needs."""

    names = ("the-model",)
    name = "the-model"
    created = 1_700_000_000
    max_model_len = 100
    exactness = Exactness(True, "as if")
    tool_call_parser = "auto"

    def reset(self) -> None:
        self.tokenizer = CharacterTokenizer()
        self.set_template(PLAIN)
        self.sampling_defaults: dict[str, float] = {}
        self.tool_call_parser = "auto"

    def set_template(self, source: str) -> None:
        template = ChatTemplate(source, bos_token="", eos_token="", now=lambda: NOW)
        self.chat_template: ChatTemplate | None = template


class FakeStream:
    def __init__(self, engine: FakeEngine, request: NewRequest, script: Iterable[object]) -> None:
        self._engine = engine
        self._request = request
        self._script = iter(script)
        self._aborted = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        return self

    async def __anext__(self) -> OutputDelta:
        if self._ended:
            raise StopAsyncIteration
        step = next(self._script)
        if step is HANG:
            await self._aborted.wait()
            step = delta(finish="abort")
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, OutputDelta)
        self._ended = step.finish_reason is not None
        return step

    def abort(self) -> None:
        if not self._ended and not self._aborted.is_set():
            self._aborted.set()
            self._engine.aborted.put(self._request.request_id)


def echo(request: NewRequest) -> list[object]:
    """Gives the prompt's last characters back, one a step, `max_tokens` of them."""
    wanted = request.params.max_tokens
    text = "".join(map(chr, request.prompt_token_ids))
    text = text[-(len(text) if wanted is None else wanted) :]
    return [delta(character) for character in text[:-1]] + [delta(text[-1:], finish="length")]


class FakeEngine:
    """Set `script`, `refusal`, `is_alive`, and what `model` has, as a test needs them."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.model = FakeModel()
        self.reset()

    def reset(self) -> None:
        self.model.reset()
        self.is_alive = True
        self.script: Script = echo
        self.full: Exception | None = None
        """Raised by `check_room`."""
        self.asked_room: list[int] = []
        """What `check_room` was asked for."""
        self.refusal: Exception | None = None
        """Raised by `add`."""
        self.added: queue.Queue[NewRequest] = queue.Queue()
        self.aborted: queue.Queue[str] = queue.Queue()
        self._streams: list[FakeStream] = []

    state = EngineState(0, 0, 0, 0, 10)

    def start(self) -> None:
        self.is_alive = True

    def stop(self) -> None:
        self.is_alive = False
        for stream in self._streams:
            stream.abort()

    def add_observer(self, observer: Observer) -> None:
        self.observers.append(observer)

    async def check_room(self, num_reqs: int = 1) -> None:
        self.asked_room.append(num_reqs)
        if self.full is not None:
            raise self.full

    async def add(self, requests: Sequence[NewRequest]) -> list[FakeStream]:
        if not self.is_alive:
            raise EngineDead("the engine has stopped and takes no requests")
        if self.refusal is not None:
            raise self.refusal
        streams = [FakeStream(self, request, self.script(request)) for request in requests]
        self._streams += streams
        for request in requests:
            self.added.put(request)
        return streams
