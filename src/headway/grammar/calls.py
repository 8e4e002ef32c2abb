"""Tool calls, instead of an answer in text or at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headway.core.structured import Calls, Thoughts
from headway.grammar.literals import SPACE, escaped, literal
from headway.grammar.schema import spaced
from headway.grammar.thoughts import not_thoughts

__all__ = ["calls_grammar"]


def calls_grammar(calls: Calls, special: Mapping[str, int], thoughts: Thoughts | None) -> str:
    """The grammar. It refers to one called `text` where `calls.otherwise` is given.

    `thoughts` are what may stand before it, in a grammar of its own.
    """
    rules = []
    for index, tool in enumerate(calls.tools):
        name = json.dumps(tool.name, ensure_ascii=False)[1:-1]
        before = literal(calls.before + name + calls.between, special)
        schema = f"%json {spaced(tool.parameters)}"
        rules.append(f"call_{index}: {before} {schema} {literal(calls.after, special)}")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(calls.tools))))
    more = f"({literal(calls.again, special)} call)*" if calls.parallel else ""
    opening, closing = literal(calls.opening, special), literal(calls.closing, special)
    rules.append(f"group: {opening} call {more} {closing}")
    return "\n".join([*rules, *_start(calls, special, not_thoughts(thoughts, special))])


def _start(calls: Calls, special: Mapping[str, int], but: str) -> list[str]:
    trigger = literal(calls.trigger, special)
    ignored = f"{literal(calls.ignored, special)}? " if calls.ignored else ""
    if calls.required:
        return [f"start: {ignored}{trigger} group"]
    if calls.otherwise is not None:
        return [f"start: {ignored}{trigger} group | @text"]
    if calls.trigger in special:
        return [f"start: TEXT ({trigger} group)?", r"TEXT: /(.|\n)*/"]
    if calls.trigger:
        # Lazy: it ends as soon as the trigger is complete, so that no free text holds one.
        opened = rf"/(.|\n)*{escaped(calls.trigger)}/{but}"
        return [
            "start: TEXT | opened group",
            rf"TEXT: /(.|\n)*/{but}",
            "opened[lazy]: OPENED",
            f"OPENED: {opened}",
        ]
    first = escaped((calls.opening + calls.before)[0])
    text = rf"/[ \n]*([^{first} \n](.|\n)*)?/{but}"
    return [f"start: {ignored}SPACE group | {ignored}TEXT", f"SPACE: {SPACE}", f"TEXT: {text}"]
