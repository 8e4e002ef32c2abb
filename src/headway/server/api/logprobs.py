"""Log-probabilities as the two endpoints show them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headway.core.plan import TokenLogprobs
from headway.text.tokenizer import Tokenizer

__all__ = [
    "ChatLogprobs",
    "CompletionLogprobs",
    "PromptLogprob",
    "chat_logprobs",
    "completion_logprobs",
    "prompt_logprobs",
]

_LEAST = -9999.0
"""Stands for what JSON cannot say, as at OpenAI and vLLM."""


class CompletionLogprobs(Struct):
    """OpenAI's older form: parallel lists over the tokens."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]
    """The token itself is always among them."""


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


def completion_logprobs(
    rows: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int
) -> CompletionLogprobs:
    """`offset`: where the first token's text begins in the completion, in characters."""
    shown = CompletionLogprobs([], [], [], [])
    for row in rows:
        text = tokenizer.token_text(row.token_id)
        shown.text_offset.append(offset)
        shown.token_logprobs.append(_finite(row.logprob))
        shown.tokens.append(text)
        # Tokens of the same text: the likelier one counts.
        top = {tokenizer.token_text(token): _finite(value) for token, value in reversed(row.top)}
        shown.top_logprobs.append({text: _finite(row.logprob), **top})
        offset += len(text)
    return shown


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
