"""`headway bench serve` and another load generator, one after the other and again, on the same
prompts.

    python tests/compat/agreement.py [--peer guidellm|vllm] [--simulated] [--rounds N]

measures `headway serve` with the default model, or a simulated engine, whose steps always take the
same time, and prints by how much the two differ. The test beside it does so with guidellm and the
simulated engine. `vllm bench serve` is tried by hand, where there is a command `vllm`.

The load is a closed loop that keeps the engine's prefill busy all the time: users wait for each
other's prompts, so that it does not matter how soon a tool sends the next request after an answer
(guidellm's processes take some 10 ms for it, and would meet the steps in another phase).

guidellm 0.8.1 calls ITL what is TPOT here (schemas/base/request_stats.py): last token less first,
over the tokens but one; its mean weighs requests by those (benchmark/schemas/metrics.py). Its own
TPOT is to the last token from the start, over all tokens. Its rates are means over the time from
the first request's start to the last one's end. vLLM's results have the names and the meanings of
ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from compat.tokenizer import save_tokenizer
from headway.bench.http import HttpClient
from headway.bench.openai import Api, Target
from headway.bench.prompts import WORDS, cut_to, measure_frame, text_prompt
from headway.models.sources import model_name, resolve_model
from headway.workload import ClosedLoop, TrafficClass, Workload
from server.tiny_core import ALPHABET
from simulated_server import MODEL, VOCAB_SIZE, simulated_servers
from soak.served import serving

__all__ = ["FIGURES", "RUNS", "difference", "interleaved", "medians", "simulated", "table"]

FIGURES = ("requests/s", "output tok/s", "median TTFT ms", "mean TPOT ms")
_OURS = ("request_throughput", "output_throughput", "median_ttft_ms", "mean_tpot_ms")
_OF_GUIDELLM = (
    ("requests_per_second", "mean"),
    ("output_tokens_per_second", "mean"),
    ("time_to_first_token_ms", "median"),
    ("inter_token_latency_ms", "mean"),
)
_TIMEOUT_S = 300
_USERS = 8
RUNS = 5

Measured = dict[str, float]
"""By `FIGURES`."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The same for both."""

    url: str
    model: str
    users: int
    workload: Path
    """As `bench serve` reads it."""
    prompts: str
    """In what form that is sent: `tokens` or `text`."""
    recorded: Path
    """The same prompts as text, with their lengths of output, a line of JSON each."""
    tokenizer: Path
    """A directory, for the other."""


@contextlib.contextmanager
def simulated(directory: Path) -> Iterator[Load]:
    """A load on a simulated engine, every letter of whose prompts is a token."""
    args = {
        "num_kv_blocks": 512,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": False,  # the same prompts come again and again
    }
    ids = {character: index for index, character in enumerate(ALPHABET)}
    backend = tokenizers.Tokenizer(WordLevel(ids, unk_token=ALPHABET[0]))
    backend.pre_tokenizer = Split(tokenizers.Regex("."), "isolated")
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    workload = _closed_loop(56, output_len=6, token_ids=(0, VOCAB_SIZE))
    with simulated_servers({"agreement": {"args": args}}) as urls:
        yield _load(
            urls["agreement"],
            MODEL,
            directory,
            workload,
            form="tokens",
            text_of=lambda tokens: "".join(ALPHABET[token] for token in tokens),
        )


def interleaved(
    load: Load, directory: Path, runs: int, peer: str
) -> tuple[list[Measured], list[Measured]]:
    """Ours and theirs, in turns."""
    ours, theirs = [], []
    for index in range(runs):
        ours.append(_ours(load, directory / f"ours-{index}.json"))
        theirs.append(_PEERS[peer](load, directory / f"theirs-{index}.json"))
    return ours, theirs


def medians(runs: Sequence[Measured]) -> Measured:
    return {name: median(run[name] for run in runs) for name in FIGURES}


def difference(ours: Measured, theirs: Measured, name: str) -> tuple[float, float]:
    """As a share of theirs, and in the figure's own unit."""
    return ours[name] / theirs[name] - 1, ours[name] - theirs[name]


def table(ours: Sequence[Measured], theirs: Sequence[Measured], peer: str) -> str:
    """Medians, their difference, and all that they are medians of."""
    lines = [f"{'':16}{'headway':>10}{peer:>10}{'difference':>12}"]
    for name in FIGURES:
        of_ours, of_theirs = medians(ours), medians(theirs)
        share, _ = difference(of_ours, of_theirs, name)
        lines.append(f"{name:16}{of_ours[name]:10.2f}{of_theirs[name]:10.2f}{100 * share:+11.2f}%")
        for who, runs in (("headway", ours), (peer, theirs)):
            lines.append(f"    {who}: " + ", ".join(f"{run[name]:.2f}" for run in runs))
    return "\n".join(lines)


def _ours(load: Load, output: Path) -> Measured:
    command = [sys.executable, "-m", "headway", "bench", "serve", "--base-url", load.url]
    command += ["--model", load.model, "--workload", str(load.workload), "--ignore-eos"]
    command += ["--prompts", load.prompts, "--disable-tqdm", "--save-result"]
    command += ["--result-dir", str(output.parent), "--result-filename", output.name]
    found = _run(command, output)
    assert (found["failed"], found["short_outputs"], found["wrong_input_lens"]) == (0, 0, 0)
    return {name: found[key] for name, key in zip(FIGURES, _OURS, strict=True)}


def _guidellm(load: Load, output: Path) -> Measured:
    backend = f"kind=openai_http,target={load.url},model={load.model}"
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += ["--backend", f"{backend},request_format=/v1/completions"]
    command += ["--profile", f"kind=concurrent,streams={load.users}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"]
    command += ["--data", f"kind=json_file,path={load.recorded}"]
    command += ["--output", f"kind=json,path={output}"]
    (found,) = _run(command, output)["benchmarks"]
    metrics, totals = found["metrics"], found["metrics"]["request_totals"]
    lengths = [each["output_tokens_count"] for each in _recorded(load)]
    assert totals["successful"] == totals["total"] == len(lengths), totals
    sent = [request["output_tokens"] for request in found["requests"]["successful"]]
    assert sorted(sent) == sorted(lengths)
    return {
        name: metrics[key]["successful"][statistic]
        for name, (key, statistic) in zip(FIGURES, _OF_GUIDELLM, strict=True)
    }


def _vllm(load: Load, output: Path) -> Measured:
    recorded = _recorded(load)
    custom = output.with_suffix(".jsonl")
    lines = [
        {"prompt": each["prompt"], "output_tokens": each["output_tokens_count"]}
        for each in recorded
    ]
    _write_lines(custom, lines)
    command = ["vllm", "bench", "serve", "--backend", "openai", "--base-url", load.url]
    command += ["--endpoint", "/v1/completions", "--model", load.model, "--ignore-eos"]
    command += ["--tokenizer", str(load.tokenizer), "--max-concurrency", str(load.users)]
    command += ["--dataset-name", "custom", "--dataset-path", str(custom), "--disable-shuffle"]
    command += ["--num-prompts", str(len(recorded)), "--no-oversample", "--skip-chat-template"]
    command += ["--custom-output-len", "-1", "--disable-tqdm", "--save-result"]
    command += ["--result-dir", str(output.parent), "--result-filename", output.name]
    found = _run(command, output)
    assert found["completed"] == len(recorded)
    assert found["total_output_tokens"] == sum(each["output_tokens_count"] for each in recorded)
    return {name: found[key] for name, key in zip(FIGURES, _OURS, strict=True)}


_PEERS: Mapping[str, Callable[[Load, Path], Measured]] = {"guidellm": _guidellm, "vllm": _vllm}


def _recorded(load: Load) -> list[dict[str, Any]]:
    return [json.loads(line) for line in load.recorded.read_text().splitlines()]


def _write_lines(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _run(command: list[str], output: Path) -> Any:
    """What it writes to `output`."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=_offline()
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(output.read_text())


def _offline() -> dict[str, str]:
    return {**os.environ, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


async def _frame(url: str, model: str) -> int:
    client = HttpClient(url, headers={})
    try:
        return await measure_frame(Target(client, Api("completions", "/v1/completions", model, {})))
    finally:
        client.close()


@contextlib.contextmanager
def _real(directory: Path) -> Iterator[Load]:
    """A load on the default model, of words, whose number is exact with any tokenizer."""
    path = resolve_model()
    save_tokenizer(path, directory)
    name = model_name(path)
    workload = _closed_loop(40, output_len=8, token_ids=(0, len(WORDS)))
    # Else each run but the first would find all prompts in the prefix cache.
    with serving("--no-enable-prefix-caching") as served:
        frame = asyncio.run(_frame(served.url, name))
        yield _load(
            served.url,
            name,
            directory,
            workload,
            form="text",
            text_of=lambda tokens: text_prompt(cut_to(tokens, frame)),
        )


def _closed_loop(num_prompts: int, *, output_len: int, token_ids: tuple[int, int]) -> Workload:
    """Prompts of about 512 tokens."""
    kind = TrafficClass(
        name="recorded",
        num_prompts=num_prompts,
        input_len=(480, 544),
        output_len=output_len,
        arrivals=ClosedLoop(_USERS),
    )
    return Workload(classes=(kind,), token_ids=token_ids)


def _load(
    url: str,
    model: str,
    directory: Path,
    workload: Workload,
    *,
    form: str,
    text_of: Callable[[Sequence[int]], str],
) -> Load:
    (directory / "workload.json").write_bytes(msgspec.json.encode(workload))
    lines = [
        {"prompt": text_of(item.token_ids), "output_tokens_count": item.output_len}
        for item in workload.items()
    ]
    _write_lines(directory / "recorded.jsonl", lines)
    return Load(
        url=url,
        model=model,
        users=_USERS,
        workload=directory / "workload.json",
        prompts=form,
        recorded=directory / "recorded.jsonl",
        tokenizer=directory,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=_PEERS, default="guidellm", help="default %(default)s")
    parser.add_argument("--simulated", action="store_true", help="an engine of fixed step times")
    parser.add_argument("--rounds", type=int, default=RUNS, help="of each; default %(default)s")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        directory = Path(name)
        with (simulated if args.simulated else _real)(directory) as load:
            measured = interleaved(load, directory, args.rounds, args.peer)
            print(table(*measured, args.peer))


if __name__ == "__main__":
    main()
