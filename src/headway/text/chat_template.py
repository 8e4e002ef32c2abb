"""Conversations to prompts: a model's chat template, run in Jinja2's sandbox and bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from headway.errors import InvalidRequest, ModelError

__all__ = ["ChatTemplate"]

MAX_OUTPUT_CHARACTERS = 8 * 2**20
"""Of one rendered prompt."""


class ChatTemplate:
    """A compiled chat template with the variables and functions that Hugging Face gives one.

    Immutable, so any number of threads may share it. Message contents reach the template as
    strings. A rendering ends with an error beyond `MAX_OUTPUT_CHARACTERS`, or when all its
    calls of `range` together count past Jinja2's `MAX_RANGE`.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None,
        eos_token: str | None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compiles `source`; `now` is the local time that `strftime_now` formats.

        Raises `ModelError` when the template does not compile.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: now().strftime(format)
        environment.globals["bos_token"] = bos_token or ""
        environment.globals["eos_token"] = eos_token or ""
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, special tokens included (so encode it without more).

        Args:
            messages: each with a `role` and a `content` that is a string or a list of parts
                `{"type": "text", "text": ...}`, whose texts are joined by line ends (as vLLM
                does). Other keys reach the template as they are.
            add_generation_prompt: end with what opens the assistant's answer.
            variables: further variables of the template, such as `tools`.

        Raises:
            InvalidRequest: a message of another form, or the template refuses them or fails.
        """
        checked = [_checked(index, message) for index, message in enumerate(messages)]
        if not checked:
            raise InvalidRequest("messages", "must hold at least one message")
        pieces: list[str] = []
        room = MAX_OUTPUT_CHARACTERS
        given = {**variables, "messages": checked, "add_generation_prompt": add_generation_prompt}
        try:
            for piece in self._template.generate(given, range=_bounded_range()):
                room -= len(piece)
                if room < 0:
                    raise TemplateError(f"the prompt exceeds {MAX_OUTPUT_CHARACTERS} characters")
                pieces.append(piece)
        # A template is code: beside Jinja2's own errors it raises whatever its operations do.
        except Exception as error:
            raise InvalidRequest("messages", f"the chat template says: {error}") from error
        return "".join(pieces)


def _checked(index: int, message: object) -> dict[str, Any]:
    """The message with its content as one string."""
    field = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(field, f"must be an object with role and content, not {message!r:.80}")
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{field}.role", f"must be a string, not {message.get('role')!r:.80}")
    return {**message, "content": _content(f"{field}.content", message.get("content"))}


def _content(field: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(field, f"must be a string or a list of parts, not {content!r:.80}")
    return "\n".join(_text(f"{field}[{index}]", part) for index, part in enumerate(content))


def _text(field: str, part: object) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest(field, f"must be an object with type and text, not {part!r:.80}")
    if part.get("type") != "text":
        raise InvalidRequest(
            f"{field}.type", f"{part.get('type')!r:.80} is not supported; 'text' is"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text", f"must be a string, not {text!r:.80}")
    return text


def _bounded_range() -> Callable[..., range]:
    """`range` for one rendering; nested loops share one allowance."""
    left = MAX_RANGE

    def bounded(*args: int) -> range:
        nonlocal left
        numbers = range(*args)
        left -= len(numbers)
        if left < 0:
            raise TemplateError(f"loops over more than {MAX_RANGE} numbers")
        return numbers

    return bounded


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: Jinja2's own filter escapes for HTML, which a model would read."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
