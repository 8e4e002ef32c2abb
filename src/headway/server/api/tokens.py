"""`/tokenize`, `/detokenize`, `/tokenizer_info`: the tokenizer over HTTP, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from headway.errors import InvalidRequest
from headway.server.api.body import Body, Int, Name, decode
from headway.server.api.chat import ChatRequest
from headway.server.api.conversation import prepare
from headway.server.errors import OPENAI_ERRORS
from headway.server.generation import ServedModel, check_model
from headway.server.renaming import renaming

__all__ = [
    "Detokenize",
    "DetokenizeAnswer",
    "DetokenizeRequest",
    "Tokenize",
    "TokenizeAnswer",
    "TokenizeChatRequest",
    "TokenizePromptRequest",
    "TokenizerInfo",
    "tokenizer_info",
]


class TokenizePromptRequest(Body, kw_only=True):
    """Body of `POST /tokenize` with a text."""

    prompt: str
    model: Name | None = None
    add_special_tokens: bool | None = None
    """BOS before the text, where the model wants one; default: true."""
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatRequest, kw_only=True):
    """Body of `POST /tokenize` with a conversation: any that `/v1/chat/completions` takes."""

    return_token_strs: bool | None = None


class TokenizeAnswer(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """The text of each; bytes that are no UTF-8 on their own are U+FFFD."""


class DetokenizeRequest(Body, kw_only=True):
    """Body of `POST /detokenize`."""

    tokens: list[Int]
    model: Name | None = None


class DetokenizeAnswer(Struct):
    prompt: str
    """With the texts of special tokens."""


class TokenizerInfo(Struct, kw_only=True):
    """What `/tokenizer_info` answers; the names are those of `tokenizer_config.json`."""

    tokenizer_class: str = "HeadwayTokenizer"
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None = None
    """The engine pads nothing."""
    bos_token_id: int | None
    eos_token_ids: list[int]
    """All that end a generation."""
    chat_template: str | None


_NULL = msgspec.Raw(b"null")


class _Kind(Struct):
    messages: msgspec.Raw = _NULL


class Tokenize:
    """The endpoint."""

    errors = OPENAI_ERRORS
    _kind = msgspec.json.Decoder(_Kind)
    _prompt = msgspec.json.Decoder(TokenizePromptRequest)
    _chat = msgspec.json.Decoder(TokenizeChatRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def answer(self, body: bytes) -> bytes:
        request: TokenizePromptRequest | TokenizeChatRequest
        if self._is_chat(body):
            request = decode(body, self._chat)
            check_model(request.model, self._model)
            tokens = self._conversation(request)
        else:
            request = decode(body, self._prompt)
            check_model(request.model, self._model)
            tokens = self._model.tokenizer.encode(
                request.prompt, add_special_tokens=request.add_special_tokens is not False
            )
        text = self._model.tokenizer.token_text
        return msgspec.json.encode(
            TokenizeAnswer(
                count=len(tokens),
                max_model_len=self._model.max_model_len,
                tokens=list(tokens),
                token_strs=[text(token) for token in tokens] if request.return_token_strs else None,
            )
        )

    def _conversation(self, request: TokenizeChatRequest) -> Sequence[int]:
        with renaming(request.names()):
            params = request.sampling_params(self._model.sampling_defaults)
            [tokens] = prepare(request.conversation(), self._model, params).encode()
        return tokens

    def _is_chat(self, body: bytes) -> bool:
        try:
            return bytes(self._kind.decode(body).messages) != bytes(_NULL)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False  # it is wrong for either


class Detokenize:
    """The endpoint."""

    errors = OPENAI_ERRORS
    _decoder = msgspec.json.Decoder(DetokenizeRequest)

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def answer(self, body: bytes) -> bytes:
        request = decode(body, self._decoder)
        check_model(request.model, self._model)
        try:
            text = self._model.tokenizer.decode(request.tokens, skip_special_tokens=False)
        except ValueError as error:
            raise InvalidRequest("tokens", str(error)) from None
        return msgspec.json.encode(DetokenizeAnswer(text))


def tokenizer_info(model: ServedModel) -> TokenizerInfo:
    tokenizer, template = model.tokenizer, model.chat_template
    return TokenizerInfo(
        vocab_size=tokenizer.vocab_size,
        model_max_length=model.max_model_len,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=list(tokenizer.eos_token_ids),
        chat_template=None if template is None else template.source,
    )
