"""The paths that take a body: each with what answers it, and what it takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from starlette.routing import Route

from headway.server.api.chat import ChatCompletions, ChatRequest
from headway.server.api.chat_reply import ChatCompletion
from headway.server.api.completions import Completion, CompletionRequest, Completions
from headway.server.api.messages import (
    CountTokens,
    CountTokensRequest,
    Messages,
    MessagesRequest,
    TokenCount,
)
from headway.server.api.messages_reply import Message
from headway.server.api.responses import Responses, ResponsesRequest
from headway.server.api.responses_reply import Response
from headway.server.api.tokens import (
    Detokenize,
    DetokenizeAnswer,
    DetokenizeRequest,
    Tokenize,
    TokenizeAnswer,
    TokenizeChatRequest,
    TokenizePromptRequest,
)
from headway.server.endpoint import ComputingEndpoint, GenerationEndpoint
from headway.server.generation import Computation, Endpoint, ServedEngine, ServedModel
from headway.server.openapi import AnthropicError, Operation
from headway.server.transport import BodyRoom
from headway.server.workers import Workers

__all__ = ["posts"]

_post = partial(Operation, method="post")

_GENERATING: Sequence[tuple[Callable[[ServedModel], Endpoint], Operation]] = [
    (
        Completions,
        _post(
            path="/v1/completions",
            summary="What comes after a text",
            body=[CompletionRequest],
            answer=Completion,
            streams=True,
        ),
    ),
    (
        ChatCompletions,
        _post(
            path="/v1/chat/completions",
            summary="The next turn of a conversation",
            body=[ChatRequest],
            answer=ChatCompletion,
            streams=True,
        ),
    ),
    (
        Responses,
        _post(
            path="/v1/responses",
            summary="The next turn of a conversation, in items",
            body=[ResponsesRequest],
            answer=Response,
            streams=True,
        ),
    ),
    (
        Messages,
        _post(
            path="/v1/messages",
            summary="The next turn of a conversation, in Anthropic's shape",
            body=[MessagesRequest],
            answer=Message,
            streams=True,
            error=AnthropicError,
        ),
    ),
]
_COMPUTING: Sequence[tuple[Callable[[ServedModel], Computation], Operation]] = [
    (
        CountTokens,
        _post(
            path="/v1/messages/count_tokens",
            summary="How long the prompt of a conversation is",
            body=[CountTokensRequest],
            answer=TokenCount,
            error=AnthropicError,
        ),
    ),
    (
        Tokenize,
        _post(
            path="/tokenize",
            summary="The tokens of a text, or of a conversation",
            body=[TokenizePromptRequest, TokenizeChatRequest],
            answer=TokenizeAnswer,
        ),
    ),
    (
        Detokenize,
        _post(
            path="/detokenize",
            summary="The text of tokens",
            body=[DetokenizeRequest],
            answer=DetokenizeAnswer,
        ),
    ),
]


MAX_BODIES_BYTES = 2**30
"""Of all requests together that are being answered."""


def posts(
    engine: ServedEngine, model: ServedModel, tidy: Callable[[], None]
) -> Iterator[tuple[Operation, Route]]:
    workers, room = Workers(), BodyRoom(MAX_BODIES_BYTES, tidy)
    for generating, operation in _GENERATING:
        generation = GenerationEndpoint(generating(model), engine, model, workers, room)
        yield operation, Route(operation.path, generation, methods=["POST"])
    for computing, operation in _COMPUTING:
        computation = ComputingEndpoint(computing(model), workers, room)
        yield operation, Route(operation.path, computation, methods=["POST"])
