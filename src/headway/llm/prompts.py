"""What callers may write for prompts and conversations, made into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

from headway.errors import InvalidRequest

__all__ = [
    "Conversation",
    "ParsedPrompt",
    "Prompt",
    "as_conversations",
    "as_prompts",
    "parse_prompt",
]

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's `{"prompt": …}` or `{"prompt_token_ids": …}`, with or without a
`cache_salt`."""

Conversation: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages, each with a `role` and a `content`."""

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """One of `text` and `token_ids` is there."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str | None = None


def as_prompts(prompts: object) -> list[Any]:
    """One prompt is a list of one, and a list of integers is one prompt."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], Integral) else items


def parse_prompt(prompt: object) -> ParsedPrompt:
    """Raises InvalidRequest for what is no `Prompt`."""
    if isinstance(prompt, str):
        return ParsedPrompt(prompt, None)
    if isinstance(prompt, Mapping):
        return _parse_dict(prompt)
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise InvalidRequest(
            "prompts", f"must be text, token ids, a dict, or a list of those, not {prompt!r}"
        )
    return ParsedPrompt(None, [_token(item) for item in prompt])


def as_conversations(messages: object) -> list[Conversation]:
    """One conversation is a list of one."""
    if not isinstance(messages, list | tuple):
        raise InvalidRequest("messages", f"must be a list of messages, not {messages!r}")
    several = not messages or not isinstance(messages[0], Mapping)
    conversations = list(messages) if several else [messages]
    for item in conversations:
        if not isinstance(item, list | tuple):
            raise InvalidRequest("messages", f"must be a list of messages, not {item!r}")
    return conversations


def _parse_dict(prompt: Mapping[Any, Any]) -> ParsedPrompt:
    for key in prompt:
        if key not in _KEYS:
            raise InvalidRequest("prompts", f"{key!r} in a dict is not supported: {_KEYS} are")
    salt = prompt.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequest("cache_salt", f"must be text, not {salt!r}")
    ids = prompt.get("prompt_token_ids")
    known = prompt.get("prompt") if ids is None else ids
    if known is None or isinstance(known, Mapping):
        raise InvalidRequest("prompts", "a dict needs `prompt` or `prompt_token_ids`")
    parsed = parse_prompt(known)
    return ParsedPrompt(parsed.text, parsed.token_ids, salt)


def _token(item: object) -> int:
    if isinstance(item, bool) or not isinstance(item, Integral):
        raise InvalidRequest("prompts", f"token ids must be integers, not {item!r}")
    return int(item)
