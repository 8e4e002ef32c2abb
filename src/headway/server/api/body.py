"""Request bodies: decoded strictly, and refused by the name of what is wrong in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import msgspec

from headway.errors import InvalidRequest
from headway.server.api.choices import choices
from headway.server.api.nulls import without_unknown_nulls
from headway.server.errors import ApiError, bad_request

__all__ = ["MAX_DEPTH", "Body", "Int", "Name", "decode", "is_too_deep", "of_kind"]

Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that every part of the server can hold and pass on."""

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
"""Text that is kept, compared and logged as a whole."""

MAX_DEPTH = 64
"""Objects and lists within each other. What a body holds reaches code that recurses: templates,
schemas."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """null is the same as leaving a field out.

    A field that this server does not implement is taken only at a value that asks for nothing;
    any other value, and any field not named here that is not null, is a 400 that names it.
    """

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Field that is not implemented → the values, beside null, that ask for nothing."""

    kinds: ClassVar[Mapping[str, Mapping[str, type[msgspec.Struct]]]] = {}
    """Field whose items are decoded apart, by `of_kind` → what they may be, by their `type`."""

    def check(self) -> None:
        """Raises `InvalidRequest` for what is well formed and not supported."""
        for field, values in self.neutral.items():
            value = getattr(self, field)
            if value is not None and not any(_same(value, other) for other in values):
                allowed = " and ".join(_json(other) for other in (None, *values))
                raise InvalidRequest(field, f"{_json(value)} is not supported (only {allowed})")


BodyT = TypeVar("BodyT", bound=Body)
StructT = TypeVar("StructT", bound=msgspec.Struct)

_ERROR_PATTERN = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD_PATTERN = re.compile(r"Object (?P<fault>contains unknown|missing required) field `(.*)`")
_NO_BACKSLASH = re.compile(rb"[^\\]")
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKETS_NOR_QUOTES = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_PIECE_BYTES = 1 << 17
"""Read in one go, with the interpreter's lock held."""


def decode(body: bytes, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
    """Reads and checks a body.

    Raises `ApiError` (400) that says where the JSON is broken or which field is wrong, and
    `InvalidRequest` for what is not supported.
    """
    try:
        request = _decoded(body, decoder)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unsayable(body) or _malformed(body, error) from None
    except RecursionError:
        raise _too_deep() from None
    if is_too_deep(body):
        raise _too_deep()
    request.check()
    return request


def _decoded(body: bytes, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if "contains unknown field" not in str(error) or b"null" not in body:
            raise
        try:
            values = msgspec.json.decode(body)
        except msgspec.ValidationError:  # a number out of range; it does not say where
            raise error from None
    known = without_unknown_nulls(values, decoder.type)
    return decoder.decode(msgspec.json.encode(known))


def of_kind(
    value: Mapping[str, Any],
    kinds: Mapping[str, type[StructT]],
    within: str,
    default: str | None = None,
) -> StructT:
    """A part of a body that was decoded without its type, by the kind that its `type` says.

    `within` is the part's path; `default` the kind of one that says none. Raises `ApiError` (400),
    which says which field is wrong, or `InvalidRequest`.
    """
    name = value.get("type") or default
    if name is None:
        raise InvalidRequest(f"{within}.type", "is required")
    if not isinstance(name, str) or name not in kinds:
        known = ", ".join(map(repr, kinds))
        raise InvalidRequest(f"{within}.type", f"{name!r:.80} is not supported (only {known})")
    kind = kinds[name]
    try:
        return msgspec.convert(without_unknown_nulls(value, kind), kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), kind, within) from None


def _wrong_field(error: str, kind: object, within: str = "") -> ApiError:
    """Turns the decoder's message into ours, with the field's path as `param`."""
    located = _ERROR_PATTERN.fullmatch(error)
    assert located is not None  # the pattern matches any string
    what, path = located["what"], located["path"] or ""
    if what.startswith("Invalid ") and (allowed := choices(kind, path)):
        value = what[what.find("'") :]
        what = f"{value} is not supported (only {', '.join(map(repr, allowed))})"
    path = f"{within}.{path}" if within and path else within or path
    field = _FIELD_PATTERN.fullmatch(what)
    if field is not None:
        param = f"{path}.{field[2]}" if path else field[2]
        known = field["fault"] == "missing required"
        what = "is required" if known else "is not a field that this server supports"
    else:
        param = path
    return bad_request(f"{param or 'the body'}: {what}", param or None)


def _malformed(body: bytes, error: Exception) -> ApiError:
    where = f" (of {len(body)} bytes)" if "truncated" in str(error) else ""
    return bad_request(f"The body is not valid JSON: {error}{where}")


def _too_deep() -> ApiError:
    return bad_request(f"The body is nested too deeply: at most {MAX_DEPTH} levels")


def is_too_deep(body: bytes) -> bool:
    """Of JSON that is valid."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    brackets = b"".join(_outside_strings(body))
    for _ in range(MAX_DEPTH):  # each time the innermost go
        if not brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """The brackets of valid JSON, all as square ones."""
    begin, inside = 0, 0
    while begin < len(body):
        # Not between a backslash and what it escapes.
        last = _NO_BACKSLASH.search(body, begin + _PIECE_BYTES)
        end = len(body) if last is None else last.end()
        piece = body[begin:end].replace(rb"\\", b"").replace(rb"\"", b"")
        piece = piece.translate(_ONE_KIND, _NEITHER_BRACKETS_NOR_QUOTES)
        parts = piece.replace(b'""', b"").split(b'"')
        yield from parts[inside::2]
        inside ^= (len(parts) - 1) & 1
        begin = end


def _unsayable(body: bytes) -> ApiError | None:
    """What JSON has no words for and some clients send all the same, with the field's name:
    halves of surrogate pairs, NaN, infinities. None: that is not what is wrong."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = _find_unsayable(value)
    if found is None:
        return None
    path, what = found
    return bad_request(f"{path or 'the body'}: {what}", path or None)


def _find_unsayable(value: object) -> tuple[str, str] | None:
    """The path of the first, and what it is."""
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str) and (half := _half_of_pair(value)) is not None:
            return path, f"character {half} ({value[half]!r}) is half of a surrogate pair"
        if isinstance(value, float) and not math.isfinite(value):
            return path, f"{value} is not a number that JSON has"
        if isinstance(value, list):
            stack += reversed([(f"{path}[{i}]", item) for i, item in enumerate(value)])
        if isinstance(value, dict):
            if any(_half_of_pair(key) is not None for key in value):
                return path, "a key holds half of a surrogate pair"
            dot = "." if path else ""
            stack += reversed([(f"{path}{dot}{key}", item) for key, item in value.items()])
    return None


def _half_of_pair(text: str) -> int | None:
    """Where the first is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _json(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:80]}…"
