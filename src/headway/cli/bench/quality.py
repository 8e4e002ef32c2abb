"""`headway bench quality`: what precisions cost, against float32."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from headway import __version__
from headway.bench.quality import Difference, Scores, compare, score, windows
from headway.cli.bench.engine import check_writable
from headway.cli.options import engine_options
from headway.cli.tables import table
from headway.cli.terminal import Terminal
from headway.config import EngineArgs
from headway.errors import InvalidConfig
from headway.llm import build_engine

__all__ = ["run"]

_BEST = ("float32", "float32")


def run(args: argparse.Namespace) -> None:
    if args.output_json is not None:
        check_writable(Path(args.output_json).expanduser())
    texts = {name: _read(name) for name in args.text}
    terminal = Terminal()
    better, name, _ = _scores(args, _BEST, texts, terminal)
    found: dict[str, dict[str, Difference]] = {
        "/".join(_BEST): {text: compare(scores, scores) for text, scores in better.items()}
    }
    for asked in args.precision:
        scores, name, label = _scores(args, asked, texts, terminal)
        found[label] = {text: compare(own, better[text]) for text, own in scores.items()}
    for line in table(list(_rows(found))):
        terminal.write(line + "\n")
    if args.output_json is not None:
        figures = {
            "headway": __version__,
            "model": name,
            "precisions": {
                label: {text: asdict(difference) for text, difference in by_text.items()}
                for label, by_text in found.items()
            },
        }
        text = msgspec.json.format(msgspec.json.encode(figures), indent=2)
        Path(args.output_json).expanduser().write_bytes(text + b"\n")


def _read(name: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise InvalidConfig("text", f"{name}: {reason}") from None


def _scores(
    args: argparse.Namespace, asked: tuple[str, str], texts: Mapping[str, str], terminal: Terminal
) -> tuple[dict[str, Scores], str, str]:
    """Of each text, the model's name, and what the precision came to: `auto` is none yet."""
    options: dict[str, Any] = engine_options(args)
    options |= {"dtype": asked[0], "kv_cache_dtype": asked[1]}
    engine = build_engine(EngineArgs.of(options), progress=terminal.say)
    try:
        config, found = engine.config, dict[str, Scores]()
        label = f"{config.dtype}/{config.kv_cache_dtype}"
        for name, text in texts.items():
            pieces = windows(engine.tokenizer, text, args.window)[: args.num_windows]
            if not pieces:
                raise InvalidConfig("text", f"{name}: fewer than two tokens")
            if max(map(len, pieces)) > config.max_model_len:
                most = config.max_model_len
                raise InvalidConfig("window", f"exceeds max_model_len ({most})")
            terminal.say(f"{label}: {name}")
            found[name] = score(engine.core, pieces)
        return found, engine.model.name, label
    finally:
        engine.core.close()


def _rows(found: Mapping[str, Mapping[str, Difference]]) -> Iterable[list[str]]:
    yield ["precision/KV", "text", "tokens", "perplexity", "change", "± error", "same token"]
    for label, by_text in found.items():
        for text, difference in by_text.items():
            yield [
                label,
                Path(text).name,
                f"{difference.num_tokens:,}",
                f"{difference.perplexity:.3f}",
                f"{100 * difference.change:+.2f} %",
                f"{100 * difference.change_error:.2f} %",
                f"{100 * difference.agreement:.1f} %",
            ]
