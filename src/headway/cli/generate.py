"""`headway generate`: completes one prompt, and prints the text as it comes."""

from __future__ import annotations

import argparse
import sys

from headway.cli.options import engine_options, sampling_options
from headway.cli.terminal import Terminal
from headway.core.params import SamplingParams
from headway.errors import HeadwayError, InvalidRequest

__all__ = ["run"]


def run(args: argparse.Namespace) -> None:
    params = SamplingParams(**{"max_tokens": 128, "temperature": 0.0, **sampling_options(args)})
    prompt = _read_stdin() if args.prompt == "-" else args.prompt
    if not prompt:
        raise InvalidRequest("prompt", "is empty")

    from headway.llm import LLM  # noqa: PLC0415  imports PyTorch

    terminal = Terminal()
    llm = LLM(**engine_options(args), max_num_seqs=1, progress=terminal.say)
    tokens = llm.chat_tokens([{"role": "user", "content": prompt}]) if args.chat else prompt
    for delta in llm.stream(tokens, params):
        terminal.write(delta.text)
        if delta.error is not None:
            raise HeadwayError(delta.error)
    terminal.write("\n")


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("prompt", f"standard input is not UTF-8: {error}") from None
