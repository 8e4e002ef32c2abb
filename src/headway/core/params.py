"""What a caller may ask of sampling, validated when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import InvalidRequest

__all__ = ["SamplingParams"]

_MAX_SEED = 2**63 - 1
_MAX_STOP_STRINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends. Names and defaults are vLLM's.

    Raises `InvalidRequest`, naming the field, for a value out of range.
    """

    max_tokens: int | None = 16
    """Most output tokens, ≥ 0; None: as many as the context leaves. With 0 the prompt is
    computed and nothing sampled."""

    min_tokens: int = 0
    """Output tokens before which no stop token or end-of-sequence is sampled."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy. At most 100 (so that float32 logits stay distinct)."""

    top_p: float = 1.0
    """Sample among the smallest set of likeliest tokens whose probability reaches this; (0, 1]."""

    top_k: int = 0
    """Sample among the k likeliest tokens; 0 or -1: all."""

    min_p: float = 0.0
    """Leave out tokens less likely than this share of the likeliest; [0, 1]."""

    seed: int | None = None
    """Makes sampling repeatable, in [-2^63, 2^63); None: one is drawn at arrival."""

    stop: str | Sequence[str] = ()
    """Strings that end the output; they are not part of it. Kept as a tuple. None, here
    and for `stop_token_ids`, is taken as none."""

    stop_token_ids: Sequence[int] = ()
    """Tokens that end the output, beside the model's end-of-sequence. Kept as a tuple."""

    ignore_eos: bool = False
    """Go on past the model's end-of-sequence token (`stop_token_ids` still end)."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        stop_ids = self.stop_token_ids or ()
        object.__setattr__(self, "stop", _tuple_of("stop", stop, str))
        object.__setattr__(self, "stop_token_ids", _tuple_of("stop_token_ids", stop_ids, int))
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", f"{self.min_tokens} is more than max_tokens ({self.max_tokens})"
            )
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p", "must be more than 0 (for greedy, set temperature to 0)")
        _check_int("top_k", self.top_k, -1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -_MAX_SEED - 1, _MAX_SEED)
        if any(not s for s in self.stop):
            raise InvalidRequest("stop", "an empty string would end the output before it begins")
        if len(self.stop) > _MAX_STOP_STRINGS:
            raise InvalidRequest("stop", f"at most {_MAX_STOP_STRINGS} strings")
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest("ignore_eos", f"must be true or false, not {self.ignore_eos!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _tuple_of(field: str, value: object, kind: type) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(field, f"must be a list of {kind.__name__}, not {value!r}")
    for item in value:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise InvalidRequest(field, f"must hold only {kind.__name__}, not {item!r}")
    return tuple(value)


def _check_int(field: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(field, f"must be an integer, not {value!r}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(field, f"must be {bounds}, not {value}")


def _check_float(field: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(field, f"must be a number, not {value!r}")
    if not low <= value <= high:
        raise InvalidRequest(field, f"must be between {low:g} and {high:g}, not {value}")
