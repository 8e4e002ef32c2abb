"""What an output may be held to: JSON, a regular expression, a choice, a grammar, tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.errors import InvalidRequest

__all__ = ["Calls", "Constraint", "Grammar", "StructuredOutputs", "Thoughts", "ToolSignature"]

MAX_BYTES = 1 << 20
"""Of a schema, a list of choices, or all tools together, as UTF-8."""
MAX_GRAMMAR_BYTES = 1 << 16
"""Of a regular expression or a grammar."""

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "calls")


class Constraint(Protocol):
    """What one output is held to. A pure function of the output, whatever was asked before."""

    def allowed(self, output_ids: Sequence[int]) -> bytes:
        """The tokens that may follow an output: a bit for each, as little-endian 32-bit words.

        An end of sequence is among them exactly where the output may end. Raises ValueError where
        nothing may follow, or finding out takes more than is allowed. For one thread at a time.
        """
        ...


class Grammar(Protocol):
    """What any number of outputs are held to."""

    def start(self) -> Constraint:
        """For one output."""
        ...


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """How a tool is called."""

    name: str
    parameters: str
    """The JSON schema of its arguments, as JSON."""
    path: str = field(default="tools", compare=False)
    """What the caller calls that, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Tool calls as one family of models writes them:

        <trigger><opening>  <before>name<between>{arguments}<after>  (<again> …)*  <closing>

    Where text is free, the trigger ends it: calls must follow, and then the end. Without a trigger,
    an answer that begins with a call's first character is one, and any other is free text to its
    end.
    """

    tools: tuple[ToolSignature, ...]
    trigger: str = ""
    opening: str = ""
    before: str
    between: str
    after: str
    again: str
    closing: str = ""
    ignored: str = ""
    """May stand before the calls."""
    required: bool = False
    """The output is calls from its first token on."""
    parallel: bool = True
    """There may be several."""
    otherwise: StructuredOutputs | None = None
    """What an answer that does not call is held to; None: it is free. Without a trigger it cannot
    be JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """A block of free text that a model may begin its output with."""

    opener: str
    closer: str
    opened: bool
    """The prompt ends within it: the output begins with the rest of it, and it must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """Holds an output to one thing; names are those of vLLM's `StructuredOutputsParams`.

    Raises `InvalidRequest`, naming the field, unless exactly one kind is given, and is of a size
    and type that can be compiled.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as JSON or as a dict. Kept as JSON."""
    regex: str | None = None
    """The whole output matches it; the syntax is that of Rust's `regex`, `\\d` being 0 to 9."""
    choice: Sequence[str] | None = None
    """The output is one of these. Kept as a tuple."""
    grammar: str | None = None
    """A context-free grammar, in llguidance's dialect of Lark or in GBNF."""
    json_object: bool | None = None
    """The output is some JSON object."""
    calls: Calls | None = None
    """The output calls tools; it is for the server, which reads the calls."""
    disable_any_whitespace: bool = False
    """JSON has no white space between its tokens."""
    whitespace_pattern: str | None = None
    """What white space JSON may have between its tokens, a regular expression."""
    thoughts: Thoughts | None = None
    """What may stand before all that, held to nothing; for the server, which reads it."""
    path: str | None = field(default=None, compare=False)
    """What the caller calls that, for errors; None: `structured_outputs` and the kind."""

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "nothing"
            message = f"holds {said}; it must be one of {', '.join(_KINDS[:-1])}"
            raise InvalidRequest(self.path or "structured_outputs", message)
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", self._as_json(self.json))
        if isinstance(self.choice, list):
            object.__setattr__(self, "choice", tuple(self.choice))
        self._check_types()
        self._check_options()
        self._check_size()

    @property
    def kind(self) -> str:
        """Which of the fields is given."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    def wrong(self, message: str) -> InvalidRequest:
        """An error about what was given."""
        return InvalidRequest(self.path or f"structured_outputs.{self.kind}", message)

    def _check_types(self) -> None:
        value = getattr(self, self.kind)
        match self.kind:
            case "choice":
                if not isinstance(value, tuple) or not all(isinstance(c, str) for c in value):
                    raise self.wrong("must be a list of strings")
                if not value or not all(value):
                    raise self.wrong("is empty, or holds an empty string")
            case "json_object":
                if value is not True:
                    raise self.wrong("must be true or false")
            case "calls":
                if not value.tools:
                    raise self.wrong("there are no tools")
            case _:
                if not isinstance(value, str):
                    raise self.wrong(f"must be a string, not {value!r:.80}")
                if not value.strip():
                    raise self.wrong("is empty")

    def _check_options(self) -> None:
        pattern = self.whitespace_pattern
        if not isinstance(self.disable_any_whitespace, bool):
            raise self._option("disable_any_whitespace", "must be true or false")
        if pattern is not None and not isinstance(pattern, str):
            raise self._option("whitespace_pattern", "must be a string")
        if pattern is not None and self.disable_any_whitespace:
            raise self._option("whitespace_pattern", "cannot go with disable_any_whitespace")
        about_space = pattern is not None or self.disable_any_whitespace
        if about_space and self.kind not in ("json", "json_object"):
            name = "disable_any_whitespace" if pattern is None else "whitespace_pattern"
            raise self._option(name, f"is about JSON, and {self.kind} is given")

    def _option(self, name: str, message: str) -> InvalidRequest:
        return InvalidRequest(f"structured_outputs.{name}", message)

    def _check_size(self) -> None:
        value = getattr(self, self.kind)
        texts: Sequence[str] = [value] if isinstance(value, str) else ()
        if isinstance(value, tuple):
            texts = value
        elif isinstance(value, Calls):
            texts = [text for tool in value.tools for text in (tool.name, tool.parameters)]
        most = MAX_GRAMMAR_BYTES if self.kind in ("regex", "grammar") else MAX_BYTES
        try:
            size = sum(len(text.encode()) for text in (*texts, self.whitespace_pattern or ""))
        except UnicodeEncodeError as error:
            raise self.wrong("holds half of a surrogate pair") from error
        if size > most:
            raise self.wrong(f"has {size:,} bytes; at most {most:,}")

    def _as_json(self, schema: Mapping[str, Any]) -> str:
        try:
            return json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.wrong(f"is no JSON: {error}") from error
