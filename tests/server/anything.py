"""The tiny engine, to which any text is a prompt and any conversation too, and which holds its
outputs to what is asked."""

from __future__ import annotations

from dataclasses import replace

from headway.errors import RequestTooLarge
from headway.grammar.compiler import GrammarCompiler
from headway.grammar.pool import GrammarPool
from headway.text.chat_template import ChatTemplate
from headway.text.tokenizer import Tokenizer
from server.serving import TIMEOUT_S
from server.tiny_engine import TinyEngine
from tiny_grammar import END, TOKENS, tiny_vocabulary

__all__ = ["HALVES", "AnythingEngine"]

TEMPLATE = (
    "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}"
    "{% for message in messages %}{{ message.role }}{{ message.content }}{% endfor %}"
)
"""It says no more of tools than makes them the template's, for there is no room for more."""

_OF_CALLS = (b"<tool_call>", b"</tool_call>", b'{"name": "', b'", "arguments": ')
"""In the place of tokens that stand for nothing in particular."""
_TOKENS = (*TOKENS[: END - 1 - len(_OF_CALLS)], *_OF_CALLS, *TOKENS[END - 1 :])

HALVES = TOKENS.index(b"\xc3"), TOKENS.index(b"\xa9")
"""Two tokens that are one character, é."""


class AnythingTokenizer(Tokenizer):
    """Every character is one of its tokens, whatever that stands for."""

    def __init__(self) -> None:
        super().__init__(replace(tiny_vocabulary(), token_bytes=_TOKENS))

    def encode(
        self, text: str, *, add_special_tokens: bool = True, at_most: int | None = None
    ) -> list[int]:
        if at_most is not None and len(text) > at_most:
            raise RequestTooLarge("prompt", f"{len(text)} characters are more than {at_most}")
        return [ord(character) % self.vocab_size for character in text]


class AnythingEngine(TinyEngine):
    def __init__(self) -> None:
        tokenizer = AnythingTokenizer()
        # A deadline that no machine is too busy for: what is refused is so for what it asks.
        grammars = GrammarPool(GrammarCompiler(tokenizer).compile, deadline_s=TIMEOUT_S)
        super().__init__(tokenizer=tokenizer, grammars=grammars)
        self.model = replace(
            self.model,
            chat_template=ChatTemplate(TEMPLATE, bos_token=None, eos_token=None),
        )
