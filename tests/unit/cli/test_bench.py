"""`headway bench serve` on the command line: what options come to, and what is saved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from headway.bench.serving import Load, Measured, Server, measure
from headway.cli import main
from headway.cli.bench.loads import random_workload
from headway.workload import (
    AtOnce,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    SharedPrefix,
    TrafficClass,
    Workload,
)
from scripted_server import Asked, Reply, ScriptedServer, completion
from virtual_loop import run_virtually

VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
    "request_rate", "burstiness", "max_concurrency",
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "latencies", "queue_times", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
    *(f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99")
      for name in ("ttft", "tpot", "itl")),
}  # fmt: skip
VLLM_DETAILS = {
    "input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors",
}  # fmt: skip
OURS = {
    *(f"{what}_e2el_ms" for what in ("mean", "median", "std", "p99")),
    "mean_lateness_ms", "p99_lateness_ms", "max_lateness_ms", "token_counts", "tokens_per_chunk",
    "total_cached_tokens", "wrong_input_lens", "short_outputs", "error_counts", "frame_tokens",
    "seeds", "workload", "saturated", "saturation", "made_up_answers",
}  # fmt: skip


@dataclass
class Bench:
    """Runs the command on virtual time against a server of its own."""

    asked: list[Asked] = field(default_factory=list)
    server: Server | None = None
    load: Load | None = None

    def __call__(self, *argv: str) -> None:
        main(["bench", "serve", *argv])

    def measure(
        self, server: Server, load: Load, *, say: Callable[[str], None], progress: bool
    ) -> Measured:
        self.server, self.load = server, load

        def answer(asked: Asked) -> Reply:
            self.asked.append(asked)
            if asked.path == "/v1/models":
                return Reply(body={"data": [{"id": "org/the-model"}]})
            gaps = [0.1] * (asked.body["max_tokens"] - 1)
            return completion(0.2, gaps, prompt=len(asked.body["prompt"]))

        async def work() -> Measured:
            async with ScriptedServer(answer).serving() as scripted:
                there = replace(server, base_url=scripted.url)
                return await measure(there, load, say=say, progress=progress)

        return run_virtually(work())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    monkeypatch.setattr("headway.cli.bench.serve.measure_server", bench.measure)
    monkeypatch.setattr("headway.cli.bench.serve.calm_collector", lambda: None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return bench


SMALL = ("--num-prompts", "2", "--random-input-len", "6", "--random-output-len", "3")


def test_a_result_has_vllms_keys_and_ours_beside_them(bench: Bench, tmp_path: Path) -> None:
    bench(*SMALL, "--save-result", "--result-dir", str(tmp_path), "--result-filename", "a.json")
    assert set(json.loads((tmp_path / "a.json").read_text())) == VLLM_KEYS | OURS
    bench(*SMALL, "--save-result", "--save-detailed", "--result-dir", str(tmp_path))
    [path] = tmp_path.glob("openai-infqps-the-model-*.json")
    found = json.loads(path.read_text())
    assert set(found) == VLLM_KEYS | OURS | VLLM_DETAILS | {"class_names", "failed_after"}
    assert found["request_rate"] == "inf"
    assert found["model_id"] == "org/the-model"
    assert found["input_lens"] == [6, 6]


def test_a_saved_result_can_be_sent_again(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    options = ("--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json")
    bench(*SMALL, "--request-rate", "5", "--seed", "7", *options)
    first = [asked.body for asked in bench.asked]
    bench.asked.clear()
    bench("--workload", str(path))
    assert [asked.body for asked in bench.asked] == first
    assert bench.load is not None
    assert bench.load.seeds == (7,)


def test_results_can_be_appended_and_carry_metadata(bench: Bench, tmp_path: Path) -> None:
    for version in ("1", "2"):
        bench(
            *SMALL, "--append-result", "--result-dir", str(tmp_path), "--result-filename", "all",
            "--metadata", f"version={version}", "tp=1", "--label", "mine",
        )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "all").read_text().splitlines()]
    assert [(line["version"], line["tp"], line["label"]) for line in lines] == [
        ("1", "1", "mine"),
        ("2", "1", "mine"),
    ]


def test_the_report_goes_to_standard_output_and_talk_to_standard_error(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(*SMALL, "--goodput", "ttft:250", "e2el:300", "--metric-percentiles", "50,99.9")
    out, err = capsys.readouterr()
    assert "Successful requests:                     2\n" in out
    assert "Mean TTFT (ms):                          200.00\n" in out
    assert "P99.9 ITL (ms):                          100.00\n" in out
    assert "Request goodput (req/s):                 0.00\n" in out
    assert err.splitlines() == ["Sending 2 requests (seed 0)"]


def test_options_reach_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    bench(
        *SMALL, "--model", "m", "--temperature", "0", "--top-k", "5", "--header", "X-A=1",
        "--extra-body", '{"seed": 3}', "--endpoint", "/v2/completions", "--max-concurrency", "1",
        "--base-url", "http://example.com/base",
    )  # fmt: skip
    body = bench.asked[0].body
    assert (body["temperature"], body["top_k"], body["seed"], body["ignore_eos"]) == (0, 5, 3, True)
    assert bench.asked[0].path == "/v2/completions"
    assert bench.asked[0].headers["authorization"] == "bearer secret"
    assert bench.asked[0].headers["x-a"] == "1"
    assert [asked.at_s for asked in bench.asked] == pytest.approx([0, 0.4])
    assert bench.server is not None
    assert bench.server.base_url == "http://example.com/base"


def test_a_header_goes_before_the_environment_and_nothing_secret_is_saved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    bench(
        *SMALL, "--header", "authorization=Bearer other", "--no-ignore-eos",
        "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r",
    )  # fmt: skip
    assert bench.asked[0].headers["authorization"] == "bearer other"
    assert "ignore_eos" not in bench.asked[-1].body
    saved = (tmp_path / "r").read_text()
    assert "secret" not in saved
    assert "other" not in saved.replace("other tokens", "")


def test_chat_is_text_at_its_own_endpoint(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_look(server: Server, load: Load, **_: object) -> Measured:
        bench.server, bench.load = server, load
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.cli.bench.serve.measure_server", only_look)
    with pytest.raises(SystemExit):
        bench(*SMALL, "--backend", "openai-chat", "--host", "::1", "--port", "81")
    assert bench.server is not None
    assert bench.load is not None
    assert bench.load.text
    assert (bench.server.kind, bench.server.endpoint) == ("chat", "/v1/chat/completions")
    assert bench.server.base_url == "http://[::1]:81"


DEFAULTS = {
    "num_prompts": 9, "random_input_len": 100, "random_output_len": 10, "random_range_ratio": 0.0,
    "random_prefix_len": 0, "arrivals": AtOnce(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"input_len": 100, "output_len": 10, "arrivals": AtOnce()}),
        ({"random_range_ratio": 0.25}, {"input_len": (75, 125), "output_len": (7, 13)}),
        (
            {"random_prefix_len": 32, "random_range_ratio": 0.5},
            {"input_len": (82, 182), "output_len": (5, 15), "shared_prefix": SharedPrefix(32)},
        ),
        (
            {"random_output_len": 1, "random_range_ratio": 0.5},
            {"output_len": (1, 2), "input_len": (50, 150)},
        ),
    ],
)  # fmt: skip
def test_vllms_options_of_a_random_load(
    options: dict[str, float], fields: dict[str, object]
) -> None:
    kind = TrafficClass(
        **{"name": "random", "num_prompts": 9, "input_len": 100, "output_len": 10, **fields}
    )
    workload = random_workload(**{**DEFAULTS, **options})
    workload.check()
    assert workload == Workload(classes=(kind,))


@pytest.mark.parametrize(
    ("argv", "arrivals"),
    [
        ((), AtOnce()),
        (("--request-rate", "inf"), AtOnce()),
        (("--request-rate", "4"), Poisson(4.0)),
        (("--request-rate", "4", "--burstiness", "0.5"), Gamma(4.0, 0.5)),
        (("--request-rate", "4", "--burstiness", "inf"), Constant(0.25)),
        (
            ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "4"),
            Ramp(rate_from=1.0, rate_to=4.0),
        ),
        (
            ("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "4",
             "--ramp-up-end-rps", "1", "--burstiness", "2"),
            Ramp(rate_from=4.0, rate_to=1.0, shape="exponential", burstiness=2.0),
        ),
    ],
)  # fmt: skip
def test_vllms_options_of_rates(argv: tuple[str, ...], arrivals: object, bench: Bench) -> None:
    bench(*SMALL, *argv)
    assert bench.load is not None
    assert bench.load.workload.classes[0].arrivals == arrivals


MOONCAKE = "".join(
    json.dumps(
        {"timestamp": 1000 * i, "input_length": 600, "output_length": 4, "hash_ids": [0, 1 + i]}
    )
    + "\n"
    for i in range(4)
)


def test_a_trace_is_sent_scaled_and_says_so(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    bench(
        "--dataset-name", "mooncake", "--dataset-path", str(tmp_path / "t.jsonl"),
        "--num-prompts", "3", "--rate-scale", "4", "--length-scale", "0.5",
        "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json",
    )  # fmt: skip
    sent = [asked for asked in bench.asked if asked.path != "/v1/models"]
    assert [each.at_s for each in sent] == pytest.approx([0, 0.25, 0.5])
    assert [len(each.body["prompt"]) for each in sent] == [256 + 44] * 3
    assert len({tuple(each.body["prompt"][:256]) for each in sent}) == 1
    assert "trace mooncake was scaled: rate times 4, lengths times 0.5" in capsys.readouterr().err
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["num_prompts"], result["request_rate"]) == (3, None)
    [trace] = result["traces"]
    assert (trace["requests"], trace["rate_scale"], trace["cut_inputs"]) == (3, 4, 0)
    bench.asked.clear()
    bench("--workload", str(tmp_path / "r.json"))
    assert [a.body for a in bench.asked if a.path != "/v1/models"] == [a.body for a in sent]


def test_a_kind_is_sent_by_its_name(bench: Bench, tmp_path: Path) -> None:
    options = ("--save-result", "--result-dir", str(tmp_path))
    bench("--workload", "long-document", "--length-scale", "0.01", "--rate-scale", "5", *options)
    sent = [asked for asked in bench.asked if asked.path != "/v1/models"]
    assert len(sent) == 24
    assert sent[-1].at_s == pytest.approx(12)
    assert max(len(each.body["prompt"]) for each in sent) <= 50
    [_] = tmp_path.glob("openai-long-document-the-model-*.json")


def failed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "serve", *argv])
    return f"{caught.value.code} {capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--num-prompts", "0"), "--num-prompts: invalid number from 1 value: '0'"),
        (("--request-rate", "0"), "--request-rate: invalid number above 0 value: '0'"),
        (("--random-range-ratio", "1"), "--random-range-ratio: invalid number in [0, 1) value"),
        (("--goodput", "itl:5"), "--goodput: must be like ttft:500"),
        (("--goodput", "ttft:x"), "--goodput: must be like ttft:500"),
        (("--percentile-metrics", "ttft,tbt"), "--percentile-metrics: 'tbt' is none; there are"),
        (("--metric-percentiles", "50;99"), "--metric-percentiles: must be numbers from 0 to 100"),
        (("--metric-percentiles", "101"), "--metric-percentiles: must be numbers from 0 to 100"),
        (("--burstiness", "2"), "--burstiness: needs a --request-rate"),
        (("--ramp-up-end-rps", "2"), "--ramp-up-end-rps: needs --ramp-up-strategy"),
        (
            ("--ramp-up-strategy", "linear", "--ramp-up-end-rps", "2"),
            "--ramp-up-start-rps: must be a finite rate",
        ),
        (
            ("--ramp-up-strategy", "linear", "--request-rate", "2"),
            "--request-rate: is the ramp's to say",
        ),
        (("--dataset-path", "x"), "--dataset-path: needs --dataset-name azure or mooncake"),
        (("--dataset-name", "azure"), "--dataset-path: must say where the azure trace is"),
        (
            ("--dataset-name", "azure", "--dataset-path", "x", "--input-len", "5"),
            "is the trace's to say; --rate-scale",
        ),
        (("--workload", "chat", "--dataset-path", "x"), "--dataset-path: is the workload's to say"),
        (("--workload", "chat", "--input-len", "5"), "is the workload's to say, and chat is given"),
        (("--workload", "chats"), "chats: No such file or directory; kinds are chat, long-"),
        (("--rate-scale", "2"), "--rate-scale: the workload has no rate"),
        (("--rate-scale", "2", "--request-rate", "4"), "--rate-scale: is for a --workload or a"),
        (
            ("--rate-scale", "2", "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1",
             "--ramp-up-end-rps", "4"),
            "--rate-scale: is for a --workload or a trace",
        ),
        (("--header", "X"), "--header: invalid KEY=VALUE value: 'X'"),
        (("--extra-body", "[]"), "--extra-body: invalid JSON object value: '[]'"),
        (("--seed", "-1"), "--seed: invalid number from 0 value: '-1'"),
        (("--backend", "tgi"), "--backend: invalid choice: 'tgi'"),
        (("--base-url", "nowhere"), "--base-url: must be like http://host:8000"),
        (("--workload", "absent.json"), "--workload: absent.json: No such file"),
        (("--result-dir", "x"), "--result-dir: says how to save the result; --save-result does"),
        (("--save-result", "--result-dir", "/dev/null/x"), "--result-dir: /dev/null/x: Not a dir"),
        (
            ("--backend", "openai-chat", "--prompts", "tokens"),
            "--prompts: tokens cannot be put as a chat",
        ),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failed(capsys, *argv)


def test_a_workload_and_an_option_that_it_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.json"
    kind = {"name": "a", "num_prompts": 1, "input_len": 4, "output_len": 1}
    path.write_text(json.dumps({"classes": [kind]}))
    message = failed(capsys, "--workload", str(path), "--request-rate", "2")
    assert "--request-rate: is the workload's to say" in message


def test_the_load_generator_needs_no_pytorch() -> None:
    program = "import sys, headway.cli.bench.serve; print('torch' in sys.modules)"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stdout.strip()) == (0, "False"), found.stderr
