"""What a caller may ask of sampling, validated when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest

__all__ = ["SamplingParams"]

T = TypeVar("T")

_MAX_SEED = 2**63 - 1
_MAX_STOP_STRINGS = 64
_MAX_STOP_TOKENS = 10_000
_MAX_CHARACTERS = 1024
_MAX_BAD_WORDS = 1024
_MAX_ALLOWED_TOKENS = 10_000
_MAX_BIASES = 1024
_MAX_N = 128


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

    presence_penalty: float = 0.0
    """Taken from the logit of every token that the output holds; [-2, 2]."""

    frequency_penalty: float = 0.0
    """Taken from a token's logit as often as the output holds it; [-2, 2]."""

    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of the tokens that prompt and
    output hold; [0.01, 100]. Below 1 it encourages them."""

    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these tokens; [-100, 100]. Kept as a sorted copy."""

    allowed_token_ids: Sequence[int] | None = None
    """Only these may be sampled. Kept as a tuple."""

    bad_words: Sequence[str] = ()
    """Words that the output may not hold, at its start or after a space: the token that would
    complete one is not sampled. Kept as a tuple."""

    n: int = 1
    """Completions of the one prompt; each is a request of its own to the scheduler."""

    logprobs: int | None = None
    """Give the log-probability of every output token, and of this many of the likeliest in its
    place; -1: of the whole vocabulary."""

    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, from the second on. Such a request reads no prefix
    from the cache."""

    seed: int | None = None
    """Makes sampling repeatable, in [-2^63, 2^63); None: one is drawn at arrival."""

    stop: str | Sequence[str] = ()
    """Strings that end the output; they are part of it only with `include_stop_str_in_output`.
    Kept as a tuple. None, here and for `stop_token_ids`, is taken as none."""

    stop_token_ids: Sequence[int] = ()
    """Tokens that end the output, beside the model's end-of-sequence. Kept as a tuple."""

    ignore_eos: bool = False
    """Go on past the model's end-of-sequence token (`stop_token_ids` still end)."""

    include_stop_str_in_output: bool = False
    """The stop string, or the text of the token, that ends the output is part of it."""

    skip_special_tokens: bool = True
    """Tokens that are marks for the model add nothing to the text."""

    structured_outputs: StructuredOutputs | None = None
    """What the output is held to. It then ends where that may end, and not before."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        object.__setattr__(self, "stop", _tuple_of("stop", stop, str))
        object.__setattr__(self, "bad_words", _tuple_of("bad_words", self.bad_words or (), str))
        stop_ids = _ids_of("stop_token_ids", self.stop_token_ids or (), _MAX_STOP_TOKENS)
        object.__setattr__(self, "stop_token_ids", stop_ids)
        self._check_length()
        self._check_distribution()
        self._check_penalties()
        self._check_tokens()
        self._check_structure()
        for field in ("logprobs", "prompt_logprobs"):
            if getattr(self, field) is not None:
                _check_int(field, getattr(self, field), -1)

    def _check_length(self) -> None:
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 0)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                "min_tokens", f"{self.min_tokens} is more than max_tokens ({self.max_tokens})"
            )
        _check_int("n", self.n, 1, _MAX_N)
        _check_strings("stop", self.stop, _MAX_STOP_STRINGS)
        for field in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidRequest(
                    field, f"must be true or false, not {getattr(self, field)!r:.80}"
                )

    def _check_distribution(self) -> None:
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -_MAX_SEED - 1, _MAX_SEED)
        if self.greedy and self.n > 1:
            raise InvalidRequest("n", f"{self.n} greedy completions are all the same; n must be 1")

    def _check_penalties(self) -> None:
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        # Within these bounds logits stay finite.
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)

    def _check_tokens(self) -> None:
        _check_strings("bad_words", self.bad_words, _MAX_BAD_WORDS)
        if self.allowed_token_ids is not None:
            allowed = _ids_of("allowed_token_ids", self.allowed_token_ids, _MAX_ALLOWED_TOKENS)
            if not allowed:
                raise InvalidRequest("allowed_token_ids", "is empty: no token could be sampled")
            object.__setattr__(self, "allowed_token_ids", tuple(sorted(set(allowed))))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _check_structure(self) -> None:
        structure = self.structured_outputs
        if structure is None:
            return
        if not isinstance(structure, StructuredOutputs):
            raise InvalidRequest(
                "structured_outputs", f"must be StructuredOutputs, not {structure!r:.80}"
            )
        if self.allowed_token_ids is not None:
            raise InvalidRequest(
                "allowed_token_ids", "cannot go with structured_outputs, which say what is allowed"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalises_output(self) -> bool:
        """The output's own tokens change its logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


def _biases(value: object) -> dict[int, float] | None:
    """A sorted copy; None where there are none."""
    if not isinstance(value, Mapping):
        raise InvalidRequest("logit_bias", f"must map token ids to numbers, not {value!r:.80}")
    if len(value) > _MAX_BIASES:
        raise InvalidRequest("logit_bias", f"holds {len(value)} tokens; at most {_MAX_BIASES}")
    for token, bias in value.items():
        _check_int("logit_bias", token, 0)
        _check_float("logit_bias", bias, -100.0, 100.0)
    return dict(sorted(value.items())) if value else None


def _check_strings(field: str, values: Sequence[str], most: int) -> None:
    if len(values) > most:
        raise InvalidRequest(field, f"holds {len(values)} strings; at most {most}")
    if any(not value for value in values):
        raise InvalidRequest(field, "an empty string is in every output")
    if (longest := max(map(len, values), default=0)) > _MAX_CHARACTERS:
        raise InvalidRequest(field, f"one has {longest} characters; at most {_MAX_CHARACTERS}")


def _tuple_of(field: str, value: object, kind: type[T]) -> tuple[T, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(field, f"must be a list of {kind.__name__}, not {value!r:.80}")
    for item in value:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise InvalidRequest(field, f"must hold only {kind.__name__}, not {item!r:.80}")
    return tuple(value)


def _ids_of(field: str, value: object, most: int) -> tuple[int, ...]:
    ids = _tuple_of(field, value, int)
    if len(ids) > most:
        raise InvalidRequest(field, f"holds {len(ids)} tokens; at most {most}")
    _check_int(field, min(ids, default=0), 0)
    return ids


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
