"""`headway bench serve` and guidellm, one after the other and again, on the same prompts.

    python tests/compat/agreement.py [--rounds N]

measures `headway serve` with the default model, and prints by how much the two differ; the test
beside it measures a simulated engine, whose steps always take the same time.

The load is a closed loop that keeps the engine's prefill busy all the time: users wait for each
other's prompts, so that it does not matter how soon a tool sends the next request after an answer
(guidellm's processes take some 10 ms for it, and would meet the steps in another phase).

guidellm 0.8.1 calls ITL what is TPOT here (schemas/base/request_stats.py): last token less first,
over the tokens but one; its mean weighs requests by those (benchmark/schemas/metrics.py). Its own
TPOT is to the last token from the start, over all tokens. Its rates are means over the time from
the first request's start to the last one's end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from compat.tokenizer import save_tokenizer
from headway.bench.http import HttpClient
from headway.bench.openai import Api, Target
from headway.bench.prompts import WORDS, cut_to, measure_frame, text_prompt
from headway.models.sources import model_name, resolve_model
from headway.workload import ClosedLoop, TrafficClass, Workload
from soak.served import serving

__all__ = ["FIGURES", "Load", "closed_loop", "difference", "interleaved", "medians", "table"]

FIGURES = ("requests/s", "output tok/s", "median TTFT ms", "mean TPOT ms")
_OURS = ("request_throughput", "output_throughput", "median_ttft_ms", "mean_tpot_ms")
_THEIRS = (
    ("requests_per_second", "mean"),
    ("output_tokens_per_second", "mean"),
    ("time_to_first_token_ms", "median"),
    ("inter_token_latency_ms", "mean"),
)
_TIMEOUT_S = 300
_RUNS = 5

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
    """A directory, for guidellm."""


def closed_loop(
    num_prompts: int, *, users: int, output_len: int, token_ids: tuple[int, int]
) -> Workload:
    """Prompts of about 512 tokens."""
    kind = TrafficClass(
        name="recorded",
        num_prompts=num_prompts,
        input_len=(480, 544),
        output_len=output_len,
        arrivals=ClosedLoop(users),
    )
    return Workload(classes=(kind,), token_ids=token_ids)


def interleaved(load: Load, directory: Path, runs: int) -> tuple[list[Measured], list[Measured]]:
    """Ours and theirs, in turns."""
    ours, theirs = [], []
    for index in range(runs):
        ours.append(_ours(load, directory / f"ours-{index}.json"))
        theirs.append(_theirs(load, directory / f"theirs-{index}.json"))
    return ours, theirs


def medians(runs: Sequence[Measured]) -> Measured:
    return {name: median(run[name] for run in runs) for name in FIGURES}


def difference(ours: Measured, theirs: Measured, name: str) -> tuple[float, float]:
    """As a share of theirs, and in the figure's own unit."""
    return ours[name] / theirs[name] - 1, ours[name] - theirs[name]


def table(ours: Sequence[Measured], theirs: Sequence[Measured]) -> str:
    """Medians, their difference, and all that they are medians of."""
    lines = [f"{'':16}{'headway':>10}{'guidellm':>10}{'difference':>12}"]
    for name in FIGURES:
        of_ours, of_theirs = medians(ours), medians(theirs)
        share, _ = difference(of_ours, of_theirs, name)
        lines.append(f"{name:16}{of_ours[name]:10.2f}{of_theirs[name]:10.2f}{100 * share:+11.2f}%")
        for who, runs in (("headway", ours), ("guidellm", theirs)):
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


def _theirs(load: Load, output: Path) -> Measured:
    backend = f"kind=openai_http,target={load.url},model={load.model}"
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += ["--backend", f"{backend},request_format=/v1/completions"]
    command += ["--profile", f"kind=concurrent,streams={load.users}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"]
    command += ["--data", f"kind=json_file,path={load.recorded}"]
    command += ["--output", f"kind=json,path={output}"]
    (found,) = _run(command, output)["benchmarks"]
    metrics, totals = found["metrics"], found["metrics"]["request_totals"]
    lengths = [
        json.loads(line)["output_tokens_count"] for line in load.recorded.read_text().splitlines()
    ]
    assert totals["successful"] == totals["total"] == len(lengths), totals
    sent = [request["output_tokens"] for request in found["requests"]["successful"]]
    assert sorted(sent) == sorted(lengths)
    return {
        name: metrics[key]["successful"][statistic]
        for name, (key, statistic) in zip(FIGURES, _THEIRS, strict=True)
    }


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


def _real_load(url: str, directory: Path) -> Load:
    """Of words, whose number is exact with any tokenizer."""
    path = resolve_model()
    save_tokenizer(path, directory)
    name = model_name(path)
    workload = closed_loop(40, users=8, output_len=8, token_ids=(0, len(WORDS)))
    (directory / "workload.json").write_bytes(msgspec.json.encode(workload))
    frame = asyncio.run(_frame(url, name))
    lines = [
        {
            "prompt": text_prompt(cut_to(item.token_ids, frame)),
            "output_tokens_count": item.output_len,
        }
        for item in workload.items()
    ]
    recorded = directory / "recorded.jsonl"
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Load(
        url=url,
        model=name,
        users=8,
        workload=directory / "workload.json",
        prompts="text",
        recorded=recorded,
        tokenizer=directory,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_RUNS, help="of each; default %(default)s")
    rounds = parser.parse_args().rounds
    # Else each run but the first would find all prompts in the prefix cache.
    options = ("--no-enable-prefix-caching",)
    with TemporaryDirectory() as name, serving(*options) as served:
        directory = Path(name)
        print(table(*interleaved(_real_load(served.url, directory), directory, rounds)))


if __name__ == "__main__":
    main()
