"""Conversations to prompts: a model's chat template, compiled once and rendered in bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateSyntaxError

from headway.errors import InvalidRequest, ModelError
from headway.text.bounded_template import BoundedEnvironment
from headway.text.dialect import NO_DIALECT, Dialect, dialect_of
from headway.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "PromptTemplate", "UnusableTemplate", "template_of"]

_MAX_REASON_CHARACTERS = 1000

_END = "\ue000:end of the final message:\ue000"
"""Put after the message that is to be continued, to find its end in the prompt."""


class ChatTemplate:
    """A compiled chat template with the variables and functions that Hugging Face gives one.

    Immutable, so any number of threads may share it. Message contents reach the template as
    strings. What a rendering may use is bounded, see `bounded_template`.
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
        if not isinstance(source, str):
            raise ModelError(f"the chat template must be a string, not {source!r:.80}")
        self.source = source
        variables = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._template = BoundedEnvironment(now, variables).from_string(source)
        except TemplateSyntaxError as error:
            reason = f"line {error.lineno}: {_shortened(error.message or '')}"
            raise ModelError(f"the chat template does not compile: {reason}") from error
        # Its Python may be refused, too: too deep for the parser, an argument given twice.
        except Exception as error:
            raise ModelError(
                f"the chat template does not compile: {_shortened(str(error))}"
            ) from error

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes calls and thoughts, as far as its template shows it."""
        return dialect_of(self.source, self.render)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, special tokens included (so encode it without more).

        Args:
            messages: each with a `role` and a `content` that is a string or a list of parts
                `{"type": "text", "text": ...}`, whose texts are joined by line ends (as vLLM
                does); with `tool_calls` it may be None. Other keys reach the template as they are.
            add_generation_prompt: end with what opens the assistant's answer.
            continue_final_message: end with the last message's content, for the answer to go on
                from there; without `add_generation_prompt`.
            variables: further variables of the template, such as `tools`.

        Raises:
            InvalidRequest: a message of another form, or the template refuses them or fails.
        """
        checked = [_checked(index, message) for index, message in enumerate(messages)]
        if not checked:
            raise InvalidRequest("messages", "must hold at least one message")
        if not continue_final_message:
            return self._rendered(checked, add_generation_prompt, variables)
        assert not add_generation_prompt, "it would open another message"
        *before, last = checked
        marked = [*before, {**last, "content": last["content"] + _END}]
        prompt, end, _ = self._rendered(marked, add_generation_prompt, variables).rpartition(_END)
        if not end:
            raise InvalidRequest(
                "continue_final_message", "the chat template does not show the final message"
            )
        return prompt

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        given = {
            # Templates ask whether these are none, and not whether they are there.
            "tools": None,
            "documents": None,
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(given)
        # A template is code: beside Jinja2's own errors it raises whatever its operations do.
        except Exception as error:
            reason = _shortened(str(error))
            raise InvalidRequest("messages", f"the chat template says: {reason}") from error


class UnusableTemplate:
    """In the place of a template that cannot be used: completions work, and chat says why not."""

    source: str | None = None
    dialect = NO_DIALECT

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def render(self, messages: Sequence[Mapping[str, Any]], /, **_: Any) -> str:  # noqa: ARG002
        """Raises `InvalidRequest`."""
        raise InvalidRequest("messages", f"the model's chat template is not usable: {self.reason}")


PromptTemplate = ChatTemplate | UnusableTemplate


def template_of(source: str | None, tokenizer: Tokenizer) -> PromptTemplate | None:
    """A model's own template, whatever becomes of it; None where it has none."""
    if source is None:
        return None
    try:
        return ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    except ModelError as error:
        return UnusableTemplate(str(error))


def _shortened(reason: str) -> str:
    if len(reason) <= _MAX_REASON_CHARACTERS:
        return reason
    return f"{reason[:_MAX_REASON_CHARACTERS]}…"


def _checked(index: int, message: object) -> dict[str, Any]:
    """The message with its content as one string."""
    field = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(field, f"must be an object with role and content, not {message!r:.80}")
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{field}.role", f"must be a string, not {message.get('role')!r:.80}")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    return {**message, "content": _content(f"{field}.content", content)}


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
