"""What a server of the default model takes of the memory and of the processor, as a process.

`docs/design/memory.md` says what the constants are made of.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from headway.config import ModelLimits, weight_bytes
from headway.models.weights import open_model
from headway.runtime import kernels

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells the memory"),
    pytest.mark.skipif(kernels.why_missing() is not None, reason="int8 needs the C++ kernels"),
]

MIB = 2**20
KV_BYTES = 32 * MIB
IDLE_BYTES = 96 * MIB
"""Python's modules and the tokenizer, beside PyTorch, in the engine's process."""
SERVER_BYTES = 128 * MIB
"""The server's own process: modules, the tokenizer, and no PyTorch."""
WORKING_BYTES = 96 * MIB
"""More, once steps have run: activations, logits, and what sampling makes of them."""
START_CPU_S = 8.0
"""To the first token. Some 3 s where nothing else runs, and 2.7 s of time."""


def resident(pid: int, name: str = "VmRSS") -> int:
    """Bytes; `VmHWM` is the most there ever was."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """User and system time: clock ticks, after the name in parentheses."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def torch_bytes() -> int:
    """Of a process that has imported PyTorch and done nothing."""
    code = "import torch; print(open('/proc/self/status').read())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    match = re.search(r"^VmRSS:\s+(\d+) kB$", shown.stdout, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


class Serving:
    """The server's process, and that of its engine, which `pid` is of."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.server_pid = process.pid
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert match is not None
        self.url = match[0]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        self.pid = int(children)
        self.complete(prompt=[7], max_tokens=1)
        self.start_cpu_s = cpu_seconds(self.server_pid) + cpu_seconds(self.pid)
        self.idle_bytes = resident(self.pid)
        self.most_at_start = resident(self.pid, "VmHWM")

    def complete(self, **body: object) -> None:
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def serving(model_path: Path) -> Iterator[Serving]:
    command = [sys.executable, "-m", "headway", "serve", "--port", "0", "--dtype", "int8"]
    command += ["--model", str(model_path), "--kv-cache-memory", str(KV_BYTES)]
    command += ["--num-threads", "1"]  # so that it need not wait for a busy core
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def weights(model_path: Path) -> int:
    model = open_model(model_path)
    limits = ModelLimits(
        max_position=model.spec.max_position,
        num_parameters=model.num_parameters,
        num_channels=model.num_channels,
        kv_elements_per_token=model.spec.kv_elements_per_token,
        available_bytes=0,
    )
    return weight_bytes(limits, "int8")


def test_the_first_token_costs_no_more_than_importing_and_reading(serving: Serving) -> None:
    assert serving.start_cpu_s < START_CPU_S


def test_the_server_holds_no_more_than_its_modules_and_the_tokenizer(serving: Serving) -> None:
    assert resident(serving.server_pid, "VmHWM") < SERVER_BYTES


def test_loading_leaves_the_packed_weights_and_little_else(
    serving: Serving, torch_bytes: int, weights: int
) -> None:
    allowed = 1.1 * weights + torch_bytes + IDLE_BYTES
    assert serving.idle_bytes < allowed
    # On the way there is never a matrix of the vocabulary (113 MB), nor two layers, in float32.
    assert serving.most_at_start < allowed + 16 * MIB


def test_it_stays_within_a_tenth_of_weights_kv_budget_and_a_constant(
    serving: Serving, torch_bytes: int, weights: int
) -> None:
    random = Random(5)
    prompts = [[random.randrange(1000, 30_000) for _ in range(20)] for _ in range(64)]
    serving.complete(prompt=prompts, max_tokens=24, ignore_eos=True, seed=1, top_p=0.9)
    used = resident(serving.pid, "VmHWM")
    budget = weights + KV_BYTES
    assert used < 1.1 * (budget + torch_bytes + IDLE_BYTES + WORKING_BYTES)
    # All of the KV cache was touched: 64 × 3 blocks are more than it holds.
    assert used > serving.idle_bytes + 0.95 * KV_BYTES
