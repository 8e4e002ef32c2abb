"""What `headway bench serve` measures is what guidellm measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from compat.agreement import FIGURES, Load, closed_loop, difference, interleaved, medians, table
from server.tiny_core import ALPHABET
from simulated_server import MODEL, VOCAB_SIZE, simulated_servers

RUNS = 5
USERS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    args = {
        "num_kv_blocks": 512,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": False,  # the same prompts come again and again
    }
    with simulated_servers({"agreement": {"args": args}}) as urls:
        yield urls["agreement"]


@pytest.fixture(scope="module")
def load(server: str, tmp_path_factory: pytest.TempPathFactory) -> Load:
    directory = tmp_path_factory.mktemp("load")
    workload = closed_loop(56, users=USERS, output_len=6, token_ids=(0, VOCAB_SIZE))
    (directory / "workload.json").write_bytes(msgspec.json.encode(workload))
    lines = [
        {
            "prompt": "".join(ALPHABET[token] for token in item.token_ids),
            "output_tokens_count": item.output_len,
        }
        for item in workload.items()
    ]
    recorded = directory / "recorded.jsonl"
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ids = {character: index for index, character in enumerate(ALPHABET)}
    backend = tokenizers.Tokenizer(WordLevel(ids, unk_token=ALPHABET[0]))
    backend.pre_tokenizer = Split(tokenizers.Regex("."), "isolated")
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Load(
        url=server,
        model=MODEL,
        users=USERS,
        workload=directory / "workload.json",
        prompts="tokens",
        recorded=recorded,
        tokenizer=directory,
    )


def test_medians_agree_with_guidellm_within_2_percent_or_2_ms(load: Load, tmp_path: Path) -> None:
    """Of five runs each, in turns."""
    ours, theirs = interleaved(load, tmp_path, RUNS)
    print(table(ours, theirs))
    for name in FIGURES:
        share, absolute = difference(medians(ours), medians(theirs), name)
        close = abs(share) <= 0.02 or (name.endswith(" ms") and abs(absolute) <= 2)
        assert close, table(ours, theirs)
