"""Grammars into masks over a vocabulary, by llguidance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from headway.core.structured import StructuredOutputs
from headway.grammar.lark import to_lark
from headway.text.tokenizer import Tokenizer

__all__ = ["CompiledGrammar", "GrammarCompiler", "TokenConstraint"]

_LIMITS = LLParserLimits(max_lexer_states=25_000, verbose_errors=False)
"""A state takes a kilobyte or two. What else a mask may take ends within some 20 ms."""
_LIMITS_OF_EXPRESSIONS = LLParserLimits(
    max_lexer_states=25_000, verbose_errors=False, initial_lexer_fuel=50_000
)
"""Of regular expressions and grammars, whose compilation takes as long as the square of what is
optional in a row: a second and a half for 10,000 `a?`, the most that this leaves. A schema of
20,000 values needs more, and its patterns are bounded in `schema`."""

_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")


class TokenConstraint:
    """A `Constraint`. Goes forward with the output that it is asked about, and begins anew where
    that is another (a step failed, and what it had sampled never was)."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._fresh = matcher
        self._matcher = matcher.deep_copy()
        self._output: tuple[int, ...] = ()

    def allowed(self, output_ids: Sequence[int]) -> bytes:
        output, num_known = tuple(output_ids), len(self._output)
        if output[:num_known] != self._output:
            self._matcher, num_known = self._fresh.deep_copy(), 0
        self._output = output
        matcher = self._matcher
        for token in output[num_known:]:
            # After its end an output has no token; one that was sampled in a step that this one
            # does not wait for is dropped.
            if not matcher.is_stopped():
                matcher.consume_token(token)
        words = matcher.compute_bitmask()
        if matcher.is_error():  # the mask is made up then
            raise ValueError(_why(matcher))
        return words


class CompiledGrammar:
    """A `Grammar`. Its constraints share what they find out about it."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> TokenConstraint:
        return TokenConstraint(self._matcher)


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Any number of threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def compile(self, asked: StructuredOutputs) -> CompiledGrammar:
        """Raises `InvalidRequest`, naming what was given, where it cannot be compiled or leaves
        nothing to begin with.

        Takes milliseconds as a rule, seconds where a schema is huge, and the first time what the
        vocabulary takes: 0.1 s for 50,000 tokens.
        """
        vocabulary = self._vocabulary
        if vocabulary is None:
            raise asked.wrong("the model has no end of sequence, so that nothing could end it")
        try:
            lark = to_lark(asked, self._special)
            grammar = CompiledGrammar(_matcher(vocabulary, lark, _limits(asked)))
            grammar.start().allowed(())
        except ValueError as error:
            for part in _parts(asked):
                self.compile(part)  # says which of them it is
            raise asked.wrong(str(error)) from error
        return grammar

    @cached_property
    def _special(self) -> dict[str, int]:
        """Special tokens by their text."""
        tokenizer = self._tokenizer
        ids = range(tokenizer.vocab_size)
        return {tokenizer.token_text(i): i for i in ids if tokenizer.is_special(i)}

    @cached_property
    def _vocabulary(self) -> LLTokenizer | None:
        tokenizer = self._tokenizer
        if not tokenizer.eos_token_ids:
            return None
        return LLTokenizer(_Vocabulary(tokenizer), eos_token=list(tokenizer.eos_token_ids))


class _Vocabulary(TokenizerWrapper):
    """What llguidance asks of a tokenizer; the names are its own."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token) for token in ids]
        self.special_token_ids = [token for token in ids if tokenizer.is_special(token)]

    def __call__(self, _: str) -> list[int]:
        raise AssertionError("nothing is forced, so nothing is cut into tokens")


def _parts(asked: StructuredOutputs) -> Iterator[StructuredOutputs]:
    """What calls are put together from, each under its own name."""
    if asked.calls is None:
        return
    for tool in asked.calls.tools:
        yield StructuredOutputs(json=tool.parameters, path=tool.path)
    if asked.calls.otherwise is not None:
        yield asked.calls.otherwise


def _limits(asked: StructuredOutputs) -> LLParserLimits:
    answer = asked if asked.calls is None else asked.calls.otherwise
    if answer is not None and answer.kind in ("regex", "grammar"):
        return _LIMITS_OF_EXPRESSIONS
    return _LIMITS


def _matcher(vocabulary: LLTokenizer, grammar: str, limits: LLParserLimits) -> LLMatcher:
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(_why(matcher))
    return matcher


def _why(matcher: LLMatcher) -> str:
    """The compiler's message, less where in our Lark it came up."""
    message: str = matcher.get_error()
    message = message.partition("\n<non-verbose/>")[0].partition("\n   1 | ")[0]
    message = _PLACE.sub("", message.partition(": failed to compile JSON schema: ")[2] or message)
    if message == "NoExtensionBias":
        message = "nothing that the model could say satisfies it from here on"
    return message.partition(". Enable 'coerce_one_of'")[0]
