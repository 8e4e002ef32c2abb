"""The exceptions that Headway raises.

    HeadwayError
    ├── InvalidRequest (ValueError)     the caller's request is wrong; `field` names what
    │   └── RequestTooLarge             would not be accepted even by an idle engine
    ├── QueueFull                       overload; `retry_after_s` says when to come back
    ├── InvalidConfig (ValueError)      an option is wrong; `field` names which
    ├── ModelError                      a model cannot be used
    │   ├── ModelNotFound               there is none of that name or path
    │   └── UnsupportedModel            there is one, and this version cannot run it
    ├── InvalidRecording (ValueError)   a recording cannot be read; `line` and `field` say where
    ├── SourceError                     what is to be watched does not tell what is needed
    │   └── NotReachable                it does not answer now; later it may
    └── EngineDead                      the engine's loop has ended; nothing can be served

HTTP statuses are chosen in `headway.server` alone.
"""

from __future__ import annotations

from os import PathLike

__all__ = [
    "HeadwayError",
    "InvalidRequest",
    "RequestTooLarge",
    "QueueFull",
    "InvalidConfig",
    "ModelError",
    "ModelNotFound",
    "UnsupportedModel",
    "InvalidRecording",
    "SourceError",
    "NotReachable",
    "EngineDead",
]


class HeadwayError(Exception):
    """Base of every error that Headway raises on purpose."""


class InvalidRequest(HeadwayError, ValueError):
    """A request that can never be served as asked.

    Attributes:
        field: the name of the offending field, as the caller wrote it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class RequestTooLarge(InvalidRequest):
    """A request that exceeds a limit even when nothing else is there (rules S10, A1)."""


class QueueFull(HeadwayError):
    """The queue of waiting requests is at its limit (rule A1).

    Attributes:
        retry_after_s: seconds until room is expected, from the measured drain rate;
            None while nothing has been measured.
    """

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InvalidConfig(HeadwayError, ValueError):
    """An option, or a combination of options, that cannot be honoured.

    Attributes:
        field: the option's name as in `EngineArgs`.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelError(HeadwayError):
    """A model that cannot be used; the message names the file and the reason."""


class ModelNotFound(ModelError):
    """No model of that name or path."""


class UnsupportedModel(ModelError):
    """A model whose architecture, tensor type or layout this version does not run."""


class InvalidRecording(HeadwayError, ValueError):
    """A file that is no recording, or not one of this version, or not all of one.

    Attributes:
        path: of the file.
        line: its number, from 1.
        field: what is wrong in it.
    """

    def __init__(self, path: PathLike[str], line: int, field: str, message: str) -> None:
        super().__init__(f"{path}: line {line}: {field}: {message}")
        self.path = path
        self.line = line
        self.field = field


class SourceError(HeadwayError):
    """A server, or a file, that does not tell what is needed to watch it; the message says what
    would work."""


class NotReachable(SourceError):
    """A server that does not answer now."""


class EngineDead(HeadwayError):
    """The step loop has ended, by shutdown or by a fault of its own.

    Attributes:
        retry_after_s: seconds until another takes its place; None: none does, or nobody knows when.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
