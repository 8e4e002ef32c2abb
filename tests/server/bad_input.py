"""The table of bad input: what is sent, and what must come of it.

A row is a line: its name, the path, what is sent, the status, and the field that the answer must
name (none: that does not matter). What is sent is a change of the path's good body, or, as bytes,
the whole body. With the status 200 it is no bad input at all, but something that clients send and
that must work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["GOOD", "ROWS", "Row"]

COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
DETOKENIZE, RESPONSES, MESSAGES = "/detokenize", "/v1/responses", "/v1/messages"
COUNT = "/v1/messages/count_tokens"

_HI = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "abc", "max_tokens": 3, "seed": 1},
    CHAT: {"messages": _HI, "max_tokens": 3, "seed": 1},
    TOKENIZE: {"prompt": "abc"},
    DETOKENIZE: {"tokens": [1, 2]},
    RESPONSES: {"input": "hi", "max_output_tokens": 3},
    MESSAGES: {"messages": _HI, "max_tokens": 3},
    COUNT: {"messages": _HI},
}


class Row(NamedTuple):
    name: str
    path: str
    sent: Mapping[str, Any] | Callable[[], bytes | Mapping[str, Any]]
    """A function where it is large."""
    status: int
    param: str | None = None

    def body(self) -> bytes:
        sent = self.sent() if callable(self.sent) else self.sent
        if isinstance(sent, bytes):
            return sent
        return json.dumps({**GOOD[self.path], **sent}).encode()


HUGE, MILLION = 2**63, 10**6

PROMPTS = [
    Row("empty", COMPLETIONS, {"prompt": ""}, 400, "prompt"),
    Row("no prompts", COMPLETIONS, {"prompt": []}, 400, "prompt"),
    Row("an empty text", COMPLETIONS, {"prompt": [""]}, 400, "prompt"),
    Row("no tokens", COMPLETIONS, {"prompt": [[]]}, 400, "prompt"),
    Row("one of two empty", COMPLETIONS, {"prompt": ["a", ""]}, 400, "prompt"),
    Row("one of two without tokens", COMPLETIONS, {"prompt": [[1], []]}, 400, "prompt"),
    Row("null", COMPLETIONS, {"prompt": None}, 400, "prompt"),
    Row("missing", COMPLETIONS, lambda: b"{}", 400, "prompt"),
    Row("a number", COMPLETIONS, {"prompt": 7}, 400, "prompt"),
    Row("an object", COMPLETIONS, {"prompt": {"a": 1}}, 400, "prompt"),
    Row("a mixture", COMPLETIONS, {"prompt": ["a", 1]}, 400, "prompt"),
    Row("a mixture of lists", COMPLETIONS, {"prompt": [[1], "a"]}, 400, "prompt"),
    Row("lists of lists of lists", COMPLETIONS, {"prompt": [[[1]]]}, 400, "prompt[0][0]"),
    Row("a negative token", COMPLETIONS, {"prompt": [-1]}, 400, "prompt"),
    Row("a token too high", COMPLETIONS, {"prompt": [61]}, 400, "prompt"),
    Row("2^31", COMPLETIONS, {"prompt": [2**31]}, 400, "prompt"),
    Row("2^63", COMPLETIONS, {"prompt": [HUGE]}, 400, "prompt[0]"),
    Row("2^64 in a list", COMPLETIONS, {"prompt": [[2**64]]}, 400, "prompt[0][0]"),
    Row("a boolean", COMPLETIONS, {"prompt": [True]}, 400, "prompt[0]"),
    Row("a boolean in a list", COMPLETIONS, {"prompt": [[False]]}, 400, "prompt[0][0]"),
    Row("a fraction", COMPLETIONS, {"prompt": [1.5]}, 400, "prompt[0]"),
    Row("2,049 prompts", COMPLETIONS, {"prompt": ["a"] * 2049}, 400, "prompt"),
    Row("a million tokens", COMPLETIONS, lambda: {"prompt": [1] * MILLION}, 400, "prompt"),
    Row("as long as the context", COMPLETIONS, {"prompt": [1] * 128}, 400, "prompt"),
    Row("longer than it", COMPLETIONS, {"prompt": [1] * 129}, 400, "prompt"),
    Row("30,000 equal characters", COMPLETIONS, {"prompt": "a" * 30_000}, 400, "prompt"),
    Row("a megabyte", COMPLETIONS, lambda: {"prompt": "a" * 2**20}, 400, "prompt"),
    Row("half a character", COMPLETIONS, lambda: b'{"prompt": "\xf0\x9f"}', 400),
    Row("half a pair", COMPLETIONS, lambda: rb'{"prompt": "\ud83d"}', 400, "prompt"),
    Row("an unknown model", COMPLETIONS, {"model": "gpt-9"}, 404, "model"),
    Row("a model of a megabyte", COMPLETIONS, lambda: {"model": "a" * 2**20}, 400, "model"),
    Row("all of the context but one", COMPLETIONS, {"prompt": [1] * 127}, 200),
    Row("exactly the context, to echo", COMPLETIONS,
        {"prompt": [1] * 128, "echo": True, "max_tokens": 0}, 200),
]  # fmt: skip

_WRONG = ("7", 1.5, True, [], {}, HUGE, 2**64)
"""For every integer; null is the same as nothing."""
INTEGERS = [
    Row(f"{field} {value!r}", COMPLETIONS, {field: value}, 400, field)
    for field, values in {
        "n": (0, -1, 129),
        "best_of": (0, -1, 2),
        "logprobs": (-2,),
        "prompt_logprobs": (-2,),
        "top_k": (-2,),
        "max_tokens": (-1,),
        "min_tokens": (-1, 4),
        "seed": (),
        "priority": (1, -1),
        "deadline_ms": (0, -1, 5, 86_400_001),
        "queue_timeout_ms": (0, -1, 86_400_001),
    }.items()
    for value in (*values, *_WRONG)
]
ACCEPTED = [
    Row(f"{field} {value!r}", COMPLETIONS, {"max_tokens": 3, field: value}, 200)
    for field, values in {
        "n": (1, 2, None),
        "best_of": (1, None),
        "logprobs": (0, 1, 61, -1, None),
        "prompt_logprobs": (0, -1, None),
        "top_k": (0, -1, 1, 61, 10**9, 2**63 - 1, None),
        "max_tokens": (0, 1, 10**9, 2**63 - 1, None),
        "min_tokens": (0, 3, None),
        "seed": (0, -1, 2**63 - 1, -(2**63), None),
        "priority": (0, None),
        "queue_timeout_ms": (86_400_000, None),
        "stop": (None, [], "a", ["a", "b"]),
        "stop_token_ids": (None, []),
        "logit_bias": (None, {}, {"5": 100}, {"5": -100.0}),
        "bad_words": (None, []),
        "allowed_token_ids": (None,),
        "echo": (True, False, None),
        "suffix": (None,),
        "stream_options": (None,),
        "metadata": (None, {}, {"a": "b"}),
        "user": ("", "me"),
        "prompt_cache_key": ("x",),
        "prompt_cache_retention": ("24h",),
        "temperature": (0, 0.0, 1e-45, 1e-300, 1e-38, 100, 1, None),
        "top_p": (0, 1, 1e-300, 5e-324, 0.1, None),
        "min_p": (0, 1, 1e-45, None),
        "presence_penalty": (-2, 2, 1e-45, None),
        "frequency_penalty": (-2, 2, None),
        "repetition_penalty": (100, 0.01, 1, None),
    }.items()
    for value in values
]

FLOATS = {
    "temperature": (-1e-45, 100.1, 3.5e38, 1e300),
    "top_p": (-0.1, 1.0000001),
    "min_p": (-0.1, 1.1),
    "presence_penalty": (-2.1, 2.1),
    "frequency_penalty": (-2.1, 2.1),
    "repetition_penalty": (0, -1, 100.1, 1e-45),
}
NUMBERS = [
    Row(f"{field} {value!r}", COMPLETIONS, {field: value}, 400, field)
    for field, values in FLOATS.items()
    for value in (*values, "1", True, [], {})
]

LISTS = [
    Row("a million stops", COMPLETIONS, lambda: {"stop": ["a"] * MILLION}, 400, "stop"),
    Row("an empty stop", COMPLETIONS, {"stop": ""}, 400, "stop"),
    Row("an empty stop of several", COMPLETIONS, {"stop": ["a", ""]}, 400, "stop"),
    Row("65 stops", COMPLETIONS, {"stop": ["a"] * 65}, 400, "stop"),
    Row("a stop of a megabyte", COMPLETIONS, lambda: {"stop": "a" * 2**20}, 400, "stop"),
    Row("a number to stop at", COMPLETIONS, {"stop": [1]}, 400, "stop[0]"),
    Row("a million stop tokens", COMPLETIONS,
        lambda: {"stop_token_ids": [5] * MILLION}, 400, "stop_token_ids"),
    Row("a stop token too high", COMPLETIONS, {"stop_token_ids": [61]}, 400, "stop_token_ids"),
    Row("a negative stop token", COMPLETIONS, {"stop_token_ids": [-1]}, 400, "stop_token_ids"),
    Row("a million biases", COMPLETIONS,
        lambda: b'{"prompt": "a", "logit_bias": {%b}}'
        % b", ".join(b'"%d": 1' % i for i in range(MILLION)), 400, "logit_bias"),
    Row("a bias for a word", COMPLETIONS, {"logit_bias": {"the": 1}}, 400, "logit_bias"),
    Row("a bias for -1", COMPLETIONS, {"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    Row("a bias for 2^64", COMPLETIONS, {"logit_bias": {str(2**64): 1}}, 400, "logit_bias"),
    Row("a bias too high", COMPLETIONS, {"logit_bias": {"61": 1}}, 400, "logit_bias"),
    Row("a bias of 101", COMPLETIONS, {"logit_bias": {"5": 101}}, 400, "logit_bias"),
    Row("a bias of text", COMPLETIONS, {"logit_bias": {"5": "1"}}, 400, "logit_bias[...]"),
    Row("biases in a list", COMPLETIONS, {"logit_bias": [1]}, 400, "logit_bias"),
    Row("no token allowed", COMPLETIONS, {"allowed_token_ids": []}, 400, "allowed_token_ids"),
    Row("a million allowed", COMPLETIONS,
        lambda: {"allowed_token_ids": [5] * MILLION}, 400, "allowed_token_ids"),
    Row("allowed too high", COMPLETIONS, {"allowed_token_ids": [61]}, 400, "allowed_token_ids"),
    Row("an empty bad word", COMPLETIONS, {"bad_words": [""]}, 400, "bad_words"),
    Row("a million bad words", COMPLETIONS, lambda: {"bad_words": ["a"] * MILLION}, 400,
        "bad_words"),
    Row("a bad word of a megabyte", COMPLETIONS, lambda: {"bad_words": ["a" * 2**20]}, 400,
        "bad_words"),
    Row("a user of a megabyte", COMPLETIONS, lambda: {"user": "a" * 2**20}, 400, "user"),
    Row("a salt of a megabyte", COMPLETIONS, lambda: {"cache_salt": "a" * 2**20}, 400,
        "cache_salt"),
    Row("metadata of a megabyte", COMPLETIONS, lambda: {"metadata": {"a": "b" * 2**20}}, 200),
]  # fmt: skip

CONTRADICTIONS = [
    Row("greedy, twice", COMPLETIONS, {"n": 2, "temperature": 0}, 400, "n"),
    Row("allowed and banned", COMPLETIONS,
        {"allowed_token_ids": [ord("A") % 61], "bad_words": ["A"]}, 400, "allowed_token_ids"),
    Row("nothing before min_tokens", COMPLETIONS,
        {"allowed_token_ids": [0], "stop_token_ids": [0], "min_tokens": 1}, 400,
        "allowed_token_ids"),
    Row("every token stops", COMPLETIONS,
        {"stop_token_ids": list(range(61)), "min_tokens": 1}, 400, "stop_token_ids"),
    Row("words that are all there is", COMPLETIONS,
        {"bad_words": [chr(65 + i) for i in range(61)]}, 400, "bad_words"),
    Row("more at least than at most", COMPLETIONS, {"min_tokens": 4, "max_tokens": 3}, 400,
        "min_tokens"),
    Row("options of no stream", COMPLETIONS, {"stream_options": {}}, 400, "stream_options"),
    Row("two limits", CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, 400,
        "max_completion_tokens"),
    Row("a limit of more than 64 bits", CHAT, {"max_completion_tokens": HUGE}, 400,
        "max_completion_tokens"),
    Row("top_logprobs of more than 64 bits", CHAT, {"logprobs": True, "top_logprobs": HUGE}, 400,
        "top_logprobs"),
    Row("top_logprobs alone", CHAT, {"top_logprobs": 2}, 400, "top_logprobs"),
    Row("prompts times n", COMPLETIONS, {"prompt": ["a"] * 20, "n": 103}, 400, "n"),
]  # fmt: skip

BODIES = [
    Row(name, path, sent, 400)
    for path in GOOD
    for name, sent in {
        "nothing": lambda: b"",
        "no object": lambda: b"[1]",
        "a null": lambda: b"null",
        "half of it": lambda: b'{"model": ',
        "not UTF-8": lambda: b'{"model": "\xff"}',
        "two of them": lambda: b"{} {}",
        "a file": lambda: bytes(range(256)) * 100,
        "100,000 brackets": lambda: b'{"model": ' + b"[" * 100_000,
        "100,000 braces": lambda: b'{"a":' * 100_000,
    }.items()
] + [
    Row("an unknown field", path, {"colour": 1}, 400, "colour") for path in GOOD
] + [
    Row("lone surrogate", path, lambda: rb'{"model": "a\udc00"}', 400, "model") for path in GOOD
] + [
    Row("another model", path, {"model": "gpt-9"}, 404, "gpt-9" if "messages" in path else "model")
    for path in GOOD
]  # fmt: skip

DEEP = [
    Row("65 deep", COMPLETIONS, lambda: _deep(65), 400),
    Row("63 deep", COMPLETIONS, lambda: _deep(63), 200),
]


def _deep(levels: int) -> bytes:
    return b'{"prompt": "a", "max_tokens": 1, "metadata": %b}' % (b"[" * levels + b"]" * levels)


OTHERS = [
    Row("a token too high", DETOKENIZE, {"tokens": [61]}, 400, "tokens"),
    Row("a negative token", DETOKENIZE, {"tokens": [-1]}, 400, "tokens"),
    Row("2^64", DETOKENIZE, {"tokens": [2**64]}, 400, "tokens[0]"),
    Row("a boolean", DETOKENIZE, {"tokens": [True]}, 400, "tokens[0]"),
    Row("a text", DETOKENIZE, {"tokens": "abc"}, 400, "tokens"),
    Row("no tokens", DETOKENIZE, {"tokens": []}, 200),
    Row("nothing", TOKENIZE, {"prompt": ""}, 200),
    Row("a megabyte", TOKENIZE, lambda: {"prompt": "a" * 2**20}, 200),
]

ROWS = [
    *PROMPTS,
    *INTEGERS,
    *ACCEPTED,
    *NUMBERS,
    *LISTS,
    *CONTRADICTIONS,
    *BODIES,
    *DEEP,
    *OTHERS,
]
