"""The options of speculative decoding, and how they go together."""

from __future__ import annotations

from headway.config.args import EngineArgs
from headway.errors import InvalidConfig

__all__ = ["resolve_speculation"]

_DRAFTS = 4
_LOOKUP_MIN, _LOOKUP_MAX = 2, 4


def resolve_speculation(args: EngineArgs) -> dict[str, int]:
    """What `EngineConfig` says of it, by field, but for the model. Raises InvalidConfig naming the
    option that contradicts another, or would do nothing."""
    if args.speculative_ngram is not None and args.speculative_model is not None:
        raise InvalidConfig("speculative_model", "and speculative_ngram exclude each other")
    if args.num_speculative_tokens is not None and args.speculative_model is None:
        raise InvalidConfig(
            "num_speculative_tokens", "needs speculative_model; speculative_ngram is such a number"
        )
    low, high = args.prompt_lookup_min, args.prompt_lookup_max
    for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if value is not None and args.speculative_ngram is None:
            raise InvalidConfig(name, "needs speculative_ngram")
    if low is not None and high is not None and low > high:
        raise InvalidConfig("prompt_lookup_min", f"{low} is more than prompt_lookup_max ({high})")
    most = args.speculative_ngram or 0
    if args.speculative_model is not None:
        most = args.num_speculative_tokens or _DRAFTS
    return {
        "num_speculative_tokens": most,
        "prompt_lookup_min": low or min(_LOOKUP_MIN, high or _LOOKUP_MIN),
        "prompt_lookup_max": high or max(_LOOKUP_MAX, low or _LOOKUP_MAX),
    }
