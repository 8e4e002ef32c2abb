"""Log-probabilities as the two endpoints show them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from msgspec import Struct

from headway.core.plan import TokenLogprobs
from headway.text.tokenizer import Tokenizer

__all__ = [
    "ChatLogprobs",
    "CompletionLogprobs",
    "PromptLogprob",
    "TextOffsets",
    "chat_logprobs",
    "prompt_logprobs",
]

_LEAST = -9999.0
"""Stands for what JSON cannot say, as at OpenAI and vLLM."""


class CompletionLogprobs(Struct):
    """OpenAI's older form: parallel lists over the tokens."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    """None for a prompt's first token."""
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
    """The token itself is always among them."""

    @classmethod
    def of(
        cls, rows: Sequence[TokenLogprobs], offsets: TextOffsets, tokenizer: Tokenizer
    ) -> CompletionLogprobs:
        """Of an output's next tokens."""
        shown = cls([], [], [], [])
        for row in rows:
            shown._add(row, offsets.place(row.token_id), tokenizer)
        return shown

    @classmethod
    def of_prompt(
        cls,
        token_ids: Sequence[int],
        rows: Sequence[TokenLogprobs],
        text: str,
        tokenizer: Tokenizer,
    ) -> CompletionLogprobs:
        """Of a prompt's tokens; there are `rows` of all but the first."""
        places = TextOffsets(tokenizer, skip_special_tokens=False)
        offsets = [places.place(token) for token in token_ids]
        # What was put before the text as it was given: BOS, a space.
        before = max(0, places.end - len(text))
        offsets = [max(offset - before, 0) for offset in offsets]
        shown = cls(offsets[:1], [None], [tokenizer.token_text(token_ids[0])], [None])
        for row, offset in zip(rows, offsets[1:], strict=True):
            shown._add(row, offset, tokenizer)
        return shown

    def then(self, more: CompletionLogprobs) -> CompletionLogprobs:
        return CompletionLogprobs(
            self.text_offset + more.text_offset,
            self.token_logprobs + more.token_logprobs,
            self.tokens + more.tokens,
            self.top_logprobs + more.top_logprobs,
        )

    def _add(self, row: TokenLogprobs, offset: int, tokenizer: Tokenizer) -> None:
        text = tokenizer.token_text(row.token_id)
        self.text_offset.append(offset)
        self.token_logprobs.append(_finite(row.logprob))
        self.tokens.append(text)
        # Tokens of the same text: the likelier one counts.
        top = {tokenizer.token_text(token): _finite(value) for token, value in reversed(row.top)}
        self.top_logprobs.append({text: _finite(row.logprob), **top})


class TextOffsets:
    """Where in a text its tokens begin, in characters, token by token; one that begins within a
    character begins where that does."""

    def __init__(
        self, tokenizer: Tokenizer, start: int = 0, *, skip_special_tokens: bool = True
    ) -> None:
        self.end = start
        """Of the text so far."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def place(self, token_id: int) -> int:
        """Where the next token begins."""
        here = self.end
        if not (self._skip_special_tokens and self._tokenizer.is_special(token_id)):
            self.end += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return here


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class PromptLogprob(Struct):
    """vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


def chat_logprobs(rows: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_chat_token(row, tokenizer) for row in rows])


def prompt_logprobs(
    rows: Sequence[TokenLogprobs], tokenizer: Tokenizer
) -> list[dict[int, PromptLogprob] | None]:
    """By prompt token: none for the first, itself and the likeliest for the others."""
    shown: list[dict[int, PromptLogprob] | None] = [None]
    for row in rows:
        entries = {
            token: PromptLogprob(_finite(value), rank, tokenizer.token_text(token))
            for rank, (token, value) in enumerate(row.top, start=1)
        }
        text = tokenizer.token_text(row.token_id)
        own = PromptLogprob(_finite(row.logprob), row.rank, text)
        shown.append({**entries, row.token_id: own})
    return shown


def _chat_token(row: TokenLogprobs, tokenizer: Tokenizer) -> ChatTokenLogprob:
    return ChatTokenLogprob(
        tokenizer.token_text(row.token_id),
        _finite(row.logprob),
        list(tokenizer.token_bytes(row.token_id)),
        [
            TopLogprob(
                tokenizer.token_text(token), _finite(value), list(tokenizer.token_bytes(token))
            )
            for token, value in row.top
        ],
    )


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
