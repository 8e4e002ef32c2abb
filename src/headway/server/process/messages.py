"""What the server and the engine's process say to each other.

    server ─ Start, Add, Abort, CheckRoom, Stop ─▶ engine
    server ◀─ Progress, Ready | Failed, Done | Refused, Stepped, Heartbeat, Ended ─ engine

A message is MessagePack behind its length, four bytes, the highest first. Nothing in it can name
code: both sides know every type beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headway.config import EngineArgs
from headway.core.params import SamplingParams
from headway.engine.exactness import Exactness
from headway.engine.outputs import NewRequest, OutputDelta
from headway.errors import (
    EngineDead,
    HeadwayError,
    InvalidConfig,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    QueueFull,
    RequestTooLarge,
    UnsupportedModel,
)
from headway.server.watch.stats import CacheInfo, StepStats

__all__ = [
    "Abort",
    "Add",
    "CheckRoom",
    "Done",
    "Ended",
    "Failed",
    "Failure",
    "Frames",
    "FromEngine",
    "Heartbeat",
    "Progress",
    "Ready",
    "Refused",
    "Start",
    "Stepped",
    "Stop",
    "ToEngine",
    "decode_from_engine",
    "decode_to_engine",
    "pack",
]


class _Message(msgspec.Struct, array_like=True, tag=True):
    """A record whose first element is its name."""


class Start(_Message):
    """The first to the engine: it loads its model, then says `Ready` or `Failed`."""

    args: EngineArgs


class _Request(msgspec.Struct, frozen=True, array_like=True):
    """A `NewRequest`; prompt and params are places in the lists of its `Add`."""

    request_id: str
    prompt: int
    params: int
    priority: int
    cache_salt: str | None
    index: int
    tenant: str
    deadline_s: float | None
    queue_timeout_s: float | None


class Add(_Message):
    """Answered with `Done` or `Refused`: all are accepted, or none."""

    ticket: int
    prompts: list[list[int]]
    params: list[SamplingParams]
    """What requests have in common goes once: the completions of a prompt have all."""
    requests: list[_Request]

    @classmethod
    def of(cls, ticket: int, new: Sequence[NewRequest]) -> Add:
        prompts = {id(item.prompt_token_ids): item.prompt_token_ids for item in new}
        params = {id(item.params): item.params for item in new}
        prompt_at = {key: place for place, key in enumerate(prompts)}
        params_at = {key: place for place, key in enumerate(params)}
        return cls(
            ticket,
            [list(prompt) for prompt in prompts.values()],
            list(params.values()),
            [
                _Request(
                    item.request_id,
                    prompt_at[id(item.prompt_token_ids)],
                    params_at[id(item.params)],
                    item.priority,
                    item.cache_salt,
                    item.index,
                    item.tenant,
                    item.deadline_s,
                    item.queue_timeout_s,
                )
                for item in new
            ],
        )

    def new_requests(self) -> list[NewRequest]:
        return [
            NewRequest(
                request_id=item.request_id,
                prompt_token_ids=self.prompts[item.prompt],
                params=self.params[item.params],
                priority=item.priority,
                cache_salt=item.cache_salt,
                index=item.index,
                tenant=item.tenant,
                deadline_s=item.deadline_s,
                queue_timeout_s=item.queue_timeout_s,
            )
            for item in self.requests
        ]


class Abort(_Message):
    """Its last delta comes in a `Stepped`, if it did not end before. Not answered otherwise."""

    request_id: str


class CheckRoom(_Message):
    """Answered with `Done` or `Refused`."""

    ticket: int
    num_reqs: int


class Stop(_Message):
    """The last to the engine, which ends its recording and exits."""


class Progress(_Message):
    """A line for a person, about what is being done before it is ready."""

    line: str


class Ready(_Message):
    """Requests are taken from now on."""

    max_model_len: int
    exactness: Exactness
    cache: CacheInfo
    banner: str


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An exception: one of `headway.errors`, by name, or another as its text."""

    kind: str
    field: str
    message: str
    retry_after_s: float | None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if not isinstance(error, HeadwayError):
            return cls("", "", f"{type(error).__name__}: {error}", None)
        field = error.field if isinstance(error, InvalidRequest | InvalidConfig) else ""
        retry_after_s = error.retry_after_s if isinstance(error, QueueFull) else None
        message = str(error).removeprefix(f"{field}: ") if field else str(error)
        return cls(type(error).__name__, field, message, retry_after_s)

    def error(self) -> Exception:
        if (of_field := _OF_FIELDS.get(self.kind)) is not None:
            return of_field(self.field, self.message)
        if self.kind == QueueFull.__name__:
            return QueueFull(self.message, self.retry_after_s)
        return _PLAIN.get(self.kind, RuntimeError)(self.message)


_OF_FIELDS: dict[str, type[InvalidRequest] | type[InvalidConfig]] = {
    each.__name__: each for each in (InvalidRequest, RequestTooLarge, InvalidConfig)
}
_PLAIN: dict[str, type[Exception]] = {
    each.__name__: each for each in (EngineDead, ModelError, ModelNotFound, UnsupportedModel)
}


class Failed(_Message):
    """It cannot start, and has exited."""

    failure: Failure


class Done(_Message):
    ticket: int


class Refused(_Message):
    ticket: int
    failure: Failure


class Stepped(_Message):
    """What a step came to, or the end of a request that was aborted."""

    deltas: list[OutputDelta]
    stats: list[StepStats]


class Heartbeat(_Message):
    """Twice a second, from a thread that does nothing else."""

    step_s: float | None
    """For how long the step has run in which the engine is; None: in none."""
    estimate_s: float
    """How long such a step should take."""


class Ended(_Message):
    """The step loop has ended by a fault of its own; no step follows."""

    reason: str


ToEngine = Start | Add | Abort | CheckRoom | Stop
FromEngine = Progress | Ready | Failed | Done | Refused | Stepped | Heartbeat | Ended

decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode

_encoder = msgspec.msgpack.Encoder()
_LENGTH_BYTES = 4


def pack(message: ToEngine | FromEngine) -> bytearray:
    """The message as it goes over the socket. Raises OverflowError for an integer that needs more
    than 64 bits."""
    frame = bytearray(_LENGTH_BYTES)
    _encoder.encode_into(message, frame, _LENGTH_BYTES)
    frame[:_LENGTH_BYTES] = (len(frame) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big")
    return frame


class Frames:
    """Cuts what comes out of the socket into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Those that are complete by now, without their lengths. To be read to the end."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            end = begin + int.from_bytes(self._buffer[start:begin], "big")
            if len(self._buffer) < end:
                break
            start = end
            yield bytes(self._buffer[begin:end])
        del self._buffer[:start]
