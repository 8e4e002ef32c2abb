"""How families of models write a tool call.

    <trigger><opening>  <before>name<between>{arguments}<after>  (<again> …)*  <closing>

Sources: the chat templates that Hugging Face's repositories carry: NousResearch/Hermes-2-Pro and
Qwen/Qwen2.5 and later (`hermes`), meta-llama/Llama-3.1 (`llama3`), mistralai's
Mistral-7B-Instruct-v0.3 (`mistral`) and Mistral-Small-3.2 (`mistral_args`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.structured import Calls, StructuredOutputs, ToolSignature

__all__ = ["FORMATS", "GENERIC", "CallFormat", "format_of"]


_MARK = re.compile(r"</?\w+>|\[[A-Z_]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """The text of calls. White space outside of names and arguments does not matter in reading."""

    name: str
    trigger: str
    """Begins calls, anywhere in an answer. Empty: an answer that begins with `{` is calls."""
    opening: str = ""
    """Between the trigger and the first call."""
    before: str = '{"name": "'
    between: str = '", "arguments": '
    after: str = "}"
    again: str
    """Between two calls."""
    closing: str = ""
    ignored: str = ""
    """A special token that may come before the calls, and says no more than they do."""
    id_length: int | None = None
    """Of the ids that the templates of this family take, in letters and digits."""

    @property
    def marks(self) -> list[str]:
        """What may be special tokens in a vocabulary, and must reach the reader as text."""
        return _MARK.findall(f"{self.trigger} {self.between} {self.after}")

    def calls_of(
        self,
        tools: tuple[ToolSignature, ...],
        *,
        required: bool = False,
        parallel: bool = True,
        otherwise: StructuredOutputs | None = None,
    ) -> Calls:
        """What an output is held to that may, or must, call these tools."""
        return Calls(
            tools=tools,
            trigger=self.trigger,
            opening=self.opening,
            before=self.before,
            between=self.between,
            after=self.after,
            again=self.again,
            closing=self.closing,
            ignored=self.ignored,
            required=required,
            parallel=parallel,
            otherwise=otherwise,
        )

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """The text of calls, each as in a message's `tool_calls`."""
        each = [
            self.before
            + call["function"]["name"]
            + self.between
            + json.dumps(call["function"]["arguments"], ensure_ascii=False)
            + self.after
            for call in calls
        ]
        return self.trigger + self.opening + self.again.join(each) + self.closing


_HERMES = CallFormat(
    name="hermes",
    trigger="<tool_call>",
    before='\n{"name": "',
    after="}\n</tool_call>",
    again="\n<tool_call>",
)
_LLAMA3 = CallFormat(
    name="llama3",
    trigger="",
    between='", "parameters": ',
    again="; ",
    ignored="<|python_tag|>",
)
_MISTRAL = CallFormat(
    name="mistral", trigger="[TOOL_CALLS]", opening="[", again=", ", closing="]", id_length=9
)
_MISTRAL_ARGS = CallFormat(
    name="mistral_args",
    trigger="[TOOL_CALLS]",
    before="",
    between="[ARGS]",
    after="",
    again="[TOOL_CALLS]",
    id_length=9,
)
GENERIC = CallFormat(name="json", trigger="", again="\n")
"""Of a model whose template says nothing of a format that is known here."""

FORMATS = {item.name: item for item in (_HERMES, _LLAMA3, _MISTRAL, _MISTRAL_ARGS, GENERIC)}
"""By name."""


def format_of(template: str) -> CallFormat:
    """The format that the source of a chat template shows."""
    if "[TOOL_CALLS]" in template:
        return _MISTRAL_ARGS if "[ARGS]" in template else _MISTRAL
    # Some families have XML within the same tags.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return _HERMES
    if "<|python_tag|>" in template:
        return _LLAMA3
    return GENERIC
