"""Tools for a model whose chat template knows none: they are told of in the system message.

What a template would write is said in plain words; so are calls and results of earlier turns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.text.tools.formats import CallFormat

__all__ = ["described", "plain_history"]

_INTRODUCTION = """\
You can call functions. Each is described by a JSON object with the JSON schema of its arguments:

{tools}

To call one, answer with this and nothing else, with the function's name and your arguments:

{example}

Where no function is of use, answer in plain words."""

_EXAMPLE = {"function": {"name": "name_of_the_function", "arguments": {"argument": "value"}}}


def described(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    form: CallFormat,
) -> list[dict[str, Any]]:
    """The messages with the `tools` (as templates get them) told of in the system message: at its
    end, or in one that is put before them all."""
    text = _INTRODUCTION.format(
        tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools),
        example=form.written([_EXAMPLE]),
    )
    first, *rest = ({**message} for message in messages)
    if first["role"] != "system":
        return [{"role": "system", "content": text}, first, *rest]
    return [first | {"content": f"{first['content']}\n\n{text}"}, *rest]


def plain_history(messages: Sequence[Mapping[str, Any]], form: CallFormat) -> list[dict[str, Any]]:
    """Calls as the assistant wrote them, and results as what the user says."""
    names: dict[object, str] = {}
    plain: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        calls = message.get("tool_calls") or ()
        names.update((call.get("id"), call["function"]["name"]) for call in calls)
        is_result = message["role"] == "tool"
        if is_result:
            name = names.get(message.get("tool_call_id"))
            source = "The function" if name is None else f"The function {name}"
            text = f"{source} returned:\n{message['content']}"
            if was_result:
                plain[-1]["content"] += f"\n\n{text}"
            else:
                plain.append({"role": "user", "content": text})
        elif calls:
            said = [message["content"]] if message["content"] else []
            own = {key: value for key, value in message.items() if key != "tool_calls"}
            plain.append(own | {"content": "\n".join([*said, form.written(calls)])})
        else:
            plain.append({**message})
        was_result = is_result
    return plain
