"""The tiny engine, to which any text is a prompt and any conversation too."""

from __future__ import annotations

from dataclasses import replace

from headway.errors import RequestTooLarge
from headway.text.chat_template import ChatTemplate
from server.tiny_engine import ALPHABET, AlphabetTokenizer, TinyEngine

__all__ = ["AnythingEngine"]

TEMPLATE = """{% for message in messages %}{{ message.role }}{{ message.content }}{% endfor %}"""


class AnythingTokenizer(AlphabetTokenizer):
    """Every character is one of the alphabet's."""

    def encode(
        self, text: str, *, add_special_tokens: bool = True, at_most: int | None = None
    ) -> list[int]:
        if at_most is not None and len(text) > at_most:
            raise RequestTooLarge("prompt", f"{len(text)} characters are more than {at_most}")
        return [ord(character) % len(ALPHABET) for character in text]


class AnythingEngine(TinyEngine):
    def __init__(self) -> None:
        super().__init__(tokenizer=AnythingTokenizer())
        self.model = replace(
            self.model,
            chat_template=ChatTemplate(TEMPLATE, bos_token=None, eos_token=None),
        )
