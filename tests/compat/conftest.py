"""Other people's clients, as they are, against `headway serve` with the default model.

`make compat` makes an environment with all of them and runs these tests; the README's test command
leaves them out. Nothing here reaches a network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.served import serving

NAME = "SmolLM2-135M-Instruct"

# Before any client is imported.
os.environ |= {
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "none",
}


@pytest.fixture(scope="session")
def server_url(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests; they leave it running."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving("--debug-invariants", "--num-kv-blocks", "2048", log=log) as served:
        yield served.url


@pytest.fixture(scope="session")
def model_name() -> str:
    return NAME
