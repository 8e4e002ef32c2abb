"""What `bench offline` and `bench latency` share: an engine, its limits, a profile, a file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from headway import __version__
from headway.bench.limits import limits
from headway.bench.offline import Batch, random_prompts, rate_lines, rates, rates_at_best, run_batch
from headway.bench.profile import profiled, shares
from headway.cli.options import engine_options
from headway.cli.terminal import Terminal
from headway.config import EngineArgs, EngineConfig
from headway.engine.collector import calm_collector
from headway.errors import InvalidConfig
from headway.llm import Engine, build_engine
from headway.runtime.machine import Machine, measure_machine

__all__ = ["Bench", "check_writable", "opened"]


class Bench:
    """An engine to run batches of random prompts on, a terminal, and what comes of it."""

    def __init__(self, args: argparse.Namespace, engine: Engine, terminal: Terminal) -> None:
        self._args = args
        self._engine = engine
        self._terminal = terminal
        self._num_batches = 0

    def run(self, count: int, *, input_len: int, output_len: int) -> Batch:
        """`count` new prompts at once."""
        self._num_batches += 1
        seed = (self._engine.config.seed or 0) * 1_000_003 + self._num_batches
        vocab_size = self._engine.tokenizer.vocab_size
        prompts = random_prompts(count, input_len, vocab_size=vocab_size, seed=seed)
        return run_batch(self._engine.core, prompts, output_len, time.perf_counter)

    def report(self, batches: Sequence[Batch], again: Callable[[], object], **more: Any) -> None:
        """Prints the rates of `batches`, which are alike, next to the machine's limit, and writes
        the file. `more` goes into it; `again` runs once more, to be profiled."""
        if self._args.profile:
            self._terminal.say("Running once more, profiled")
            before = self._phase_seconds()
            with profiled() as profile:
                again()
            phases = {name: s - before[name] for name, s in self._phase_seconds().items()}
            for line in (*profile.lines(), *shares("in the kernels", phases)):
                self._terminal.write(line + "\n")
        self._terminal.say("Measuring what the machine can do")
        machine, config = measure_machine(self._engine.config.device), self._engine.config
        found, best = rates(batches), self._best(machine, batches[0])
        for line in (*rate_lines(found, best), *_machine_lines(machine, config)):
            self._terminal.write(line + "\n")
        figures: dict[str, Any] = {
            **found,
            "limits": best,
            **more,
            "machine": asdict(machine),
            "settings": self._settings(),
        }
        if self._args.output_json is not None:
            path = Path(self._args.output_json).expanduser()
            text = msgspec.json.format(msgspec.json.encode(figures), indent=2)
            path.write_bytes(text + b"\n")

    def _phase_seconds(self) -> Mapping[str, float]:
        tell = self._engine.phase_seconds
        return {} if tell is None else tell()

    def _best(self, machine: Machine, batch: Batch) -> dict[str, float | None] | None:
        config = self._engine.config
        least = limits(
            self._engine.model.spec,
            machine,
            dtype=config.dtype,
            kv_cache_dtype=config.kv_cache_dtype,
            num_prompts=batch.num_prompts,
            width=config.max_num_seqs,
            budget=config.max_num_batched_tokens,
            input_len=self._args.input_len,
            output_len=self._args.output_len,
        )
        return None if least is None else rates_at_best(batch, least)

    def _settings(self) -> Mapping[str, Any]:
        own = ("num_prompts", "num_iters", "num_iters_warmup", "input_len", "output_len")
        return {
            "headway": __version__,
            "model": self._engine.model.name,
            **{name: value for name, value in vars(self._args).items() if name in own},
            "engine": msgspec.to_builtins(self._engine.config, enc_hook=_plain),
        }


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Bench]:
    """Builds the engine that `args` ask for, and ends it afterwards. What can be told to be wrong
    is, before the model is loaded."""
    if args.output_json is not None:
        check_writable(Path(args.output_json).expanduser())
    terminal = Terminal()
    engine = build_engine(EngineArgs.of(engine_options(args)), progress=terminal.say)
    try:
        most = engine.config.max_model_len
        if args.input_len + args.output_len > most:
            raise InvalidConfig(
                "output_len",
                f"{args.input_len} tokens in and {args.output_len} out are more than "
                f"max_model_len ({most})",
            )
        terminal.say(engine.banner())
        calm_collector()
        yield Bench(args, engine, terminal)
    finally:
        engine.core.close()


def _machine_lines(machine: Machine, config: EngineConfig) -> list[str]:
    speeds = ", ".join(
        f"{name} {value / 1e9:.0f}" for name, value in machine.operations_per_s.items()
    )
    return [
        f"The limit is this machine's, for {config.dtype} weights and a {config.kv_cache_dtype} "
        "KV cache:",
        f"it reads {machine.read_bytes_per_s / 1e9:.1f} GB/s, and multiplies matrices at {speeds} "
        f"GFLOP/s ({machine.num_threads} threads).",
    ]


def check_writable(path: Path) -> None:
    """Raises InvalidConfig where `output_json` cannot be written."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise InvalidConfig("output_json", f"{path}: {error.strerror}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
