"""Bodies at random: near what the structs ask for, far from it, and no JSON at all."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from headway.server.api.chat import ChatRequest
from headway.server.api.completions import CompletionRequest
from headway.server.api.messages import CountTokensRequest, MessagesRequest
from headway.server.api.responses import ResponsesRequest
from headway.server.api.tokens import DetokenizeRequest, TokenizePromptRequest
from server.bad_input import GOOD

__all__ = ["STRUCTS", "bodies"]

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/tokenize": TokenizePromptRequest,
    "/detokenize": DetokenizeRequest,
}

_INTEGERS = st.integers(-2, 70) | st.sampled_from(
    [2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1]
)
_FLOATS = st.floats(-3, 3) | st.floats(width=32) | st.floats()
_TEXTS = st.text("ABab{}[]", max_size=8) | st.text(max_size=8) | st.just("a" * 300)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | _INTEGERS | _FLOATS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


def bodies(path: str) -> st.SearchStrategy[bytes]:
    """Of a path: mostly its good body with some fields changed."""
    info = inspect.type_info(STRUCTS[path])
    assert isinstance(info, inspect.StructType)
    fields = {field.encode_name: _of(field.type) | _ANYTHING for field in info.fields}
    changes = st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )
    whole = changes.map(lambda changed: _json({**GOOD[path], **changed}))
    return whole | whole.flatmap(_broken) | _ANYTHING.map(_json) | st.binary(max_size=40)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def _broken(body: bytes) -> st.SearchStrategy[bytes]:
    """The body with a few bytes taken out and others put in."""
    places = st.tuples(st.integers(0, len(body)), st.integers(0, 5), st.binary(max_size=3))
    return places.map(lambda cut: body[: cut[0]] + cut[2] + body[cut[0] + cut[1] :])


_SIMPLE: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.IntType: _INTEGERS,
    inspect.FloatType: _FLOATS,
    inspect.StrType: _TEXTS,
    inspect.BoolType: st.booleans(),
    inspect.NoneType: st.none(),
}


def _of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type, or nearly."""
    match kind:
        case inspect.LiteralType():
            return st.sampled_from(list(kind.values))
        case inspect.UnionType():
            return st.one_of([_of(member) for member in kind.types])
        case inspect.ListType():
            return st.lists(_of(kind.item_type), max_size=3)
        case inspect.DictType():
            return st.dictionaries(_of(kind.key_type).map(str), _of(kind.value_type), max_size=3)
        case inspect.StructType():
            return _struct(kind)
    return _SIMPLE.get(type(kind), _ANYTHING)


def _struct(kind: inspect.StructType) -> st.SearchStrategy[dict[str, Any]]:
    needed = {field.encode_name: _of(field.type) for field in kind.fields if field.required}
    others = {field.encode_name: _of(field.type) for field in kind.fields if not field.required}
    tag = {} if kind.tag_field is None else {kind.tag_field: st.just(kind.tag)}
    return st.fixed_dictionaries({**tag, **needed}, optional=others)
