"""Request bodies: decoded strictly, and refused by the name of what is wrong in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import msgspec

from headway.errors import InvalidRequest
from headway.server.errors import ApiError, bad_request

__all__ = ["Body", "decode"]


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """null is the same as leaving a field out.

    A field that this server does not implement is taken only at a value that asks for nothing;
    any other value, and any field not named here, is a 400 that names it.
    """

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Field that is not implemented → the values, beside null, that ask for nothing."""

    def check(self) -> None:
        """Raises `InvalidRequest` for what is well formed and not supported."""
        for field, values in self.neutral.items():
            value = getattr(self, field)
            if value is not None and not any(_same(value, other) for other in values):
                allowed = " and ".join(_json(other) for other in (None, *values))
                raise InvalidRequest(field, f"{_json(value)} is not supported (only {allowed})")


BodyT = TypeVar("BodyT", bound=Body)

_ERROR_PATTERN = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD_PATTERN = re.compile(r"Object (?P<fault>contains unknown|missing required) field `(.*)`")


def decode(body: bytes, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
    """Reads and checks a body.

    Raises `ApiError` (400) that says where the JSON is broken or which field is wrong, and
    `InvalidRequest` for what is not supported.
    """
    try:
        request = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = f" (of {len(body)} bytes)" if "truncated" in str(error) else ""
        raise bad_request(f"The body is not valid JSON: {error}{where}") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply") from None
    request.check()
    return request


def _wrong_field(error: str) -> ApiError:
    """Turns the decoder's message into ours, with the field's path as `param`."""
    located = _ERROR_PATTERN.fullmatch(error)
    assert located is not None  # the pattern matches any string
    what, path = located["what"], located["path"] or ""
    field = _FIELD_PATTERN.fullmatch(what)
    if field is not None:
        param = f"{path}.{field[2]}" if path else field[2]
        known = field["fault"] == "missing required"
        what = "is required" if known else "is not a field that this server supports"
    else:
        param = path
    return bad_request(f"{param or 'the body'}: {what}", param or None)


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _json(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:80]}…"
