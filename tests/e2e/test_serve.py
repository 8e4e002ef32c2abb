"""`headway serve` as a process, with the default model and real clients."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from e2e.conftest import Server, serving
from waiting import IN_TIME_S, in_time

CAPITAL = "The capital of France is"


def test_the_banner_says_what_is_in_force(server: Server) -> None:
    assert "SmolLM2-135M-Instruct" in server.banner
    for words in ("int8", "blocks of 16", "tokens", "max_num_seqs 128", "fcfs"):
        assert words in server.banner


def test_the_capital_of_france_streamed(server: Server) -> None:
    body = {"prompt": CAPITAL, "max_tokens": 8, "temperature": 0, "stream": True}
    pieces = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    assert len(pieces) > 1
    assert "".join(pieces).startswith(" Paris")


def test_a_hundred_users_at_once_are_all_answered_as_if_alone(server: Server) -> None:
    prompts = [
        f"{CAPITAL if i % 2 else 'Once upon a time'} number {i},"[: 12 + i] for i in range(100)
    ]

    def ask(prompt: str) -> dict[str, object]:
        body = {"prompt": prompt, "max_tokens": 4 + len(prompt) % 8, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    with ThreadPoolExecutor(100) as pool:
        crowd = list(pool.map(ask, prompts))
    assert all(choice["finish_reason"] in ("length", "stop") for choice in crowd)
    for index in (0, 1, 50, 99):
        assert ask(prompts[index])["text"] == crowd[index]["text"]


def test_a_killed_client_gives_its_blocks_back(server: Server) -> None:
    body = {"prompt": CAPITAL, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    aborted = server.metric("request_success_total", 'finished_reason="abort"')
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # dropping it would close the connection
        first = next(lines)
        assert response.status_code == 200, first
        assert server.metric("num_requests_running") == 1, first
    assert in_time(lambda: server.metric("num_requests_running") == 0)
    assert server.metric("kv_cache_usage_perc") == 0
    assert server.metric("request_success_total", 'finished_reason="abort"') == aborted + 1


def test_a_prompt_that_can_never_fit_is_refused_at_once_with_the_numbers(server: Server) -> None:
    answer = httpx.post(
        f"{server.url}/v1/completions", json={"prompt": [5] * 8192}, timeout=IN_TIME_S
    )
    assert answer.status_code == 400
    assert "8192 tokens leave no room" in answer.json()["error"]["message"]


def test_an_interrupted_server_ends_what_runs_on_and_its_recording_is_whole(
    model_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "recording"
    with serving("--record", str(file), "--recipe", "chat", "--max-num-seqs", "8") as server:
        # Of the recipe, for which no server is started of its own.
        assert "Recipe     chat: max_num_batched_tokens 8192, max_num_seqs 256" in server.banner
        assert "           given instead: max_num_seqs 8\n" in server.banner
        done = httpx.post(f"{server.url}/v1/completions", json={"prompt": CAPITAL}, timeout=60)
        assert done.status_code == 200
        endless = {"prompt": CAPITAL, "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=endless, timeout=60
        ) as response:
            lines = (line for line in response.iter_lines() if line)
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGINT)
            assert list(lines)[-1].startswith('data: {"error":')
        assert server.process.wait(timeout=IN_TIME_S) == 0
    replay = subprocess.run(
        [sys.executable, "-m", "headway", "replay", str(file)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert replay.returncode == 0, replay.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-kv-blocks", "0"], "--num-kv-blocks: "),  # found by the engine's process
        (["--model", "nowhere.gguf"], "nowhere.gguf"),
        (["--restart-engine", "--record", "file"], "--restart-engine: "),
        (["--chat-template", "broken.jinja"], "--chat-template: "),
    ],
)
def test_a_server_that_cannot_start_names_the_reason(
    model_path: Path, options: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.jinja").write_text("{% if %}")
    ended = subprocess.run(
        [sys.executable, "-m", "headway", "serve", "--port", "0", *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("headway: error: ")
    assert message in ended.stderr.splitlines()[-1]
