"""lm-eval's `local-completions` with its remote tokenizer, against what the engine says itself."""

from __future__ import annotations

from typing import Any

import datasets
import lm_eval
import pytest

from headway import LLM, SamplingParams
from headway.models.weights import open_model

FACTS = [
    ("The capital of France is", [" Paris", " Berlin", " a river"], 0),
    ("The opposite of hot is", [" yellow", " cold", " Monday"], 1),
    ("Two plus two is", [" four", " seven", " a horse"], 0),
    ("A week has seven", [" wheels", " days", " oceans"], 1),
    ("Water freezes into", [" ice", " gold", " music"], 0),
    ("The sun rises in the", [" cupboard", " east", " past"], 1),
]
PASSAGE = (
    "A lighthouse keeper counts the ships that pass in the night. Each has two lights, a red one "
    "and a green one, and from their places he knows which way she goes. In the morning he writes "
    "the number into a book, and nobody has ever asked him for it. "
) * 4


@pytest.fixture(scope="module")
def llm(model_path: object) -> LLM:
    """The same engine without a server."""
    return LLM(model=str(model_path), num_kv_blocks=512)


@pytest.fixture(scope="module")
def tokenizer(model_path: Any) -> Any:
    return open_model(model_path).tokenizer()


def model_args(server_url: str, model_name: str, **more: object) -> dict[str, object]:
    return {
        "model": model_name,
        "base_url": f"{server_url}/v1/completions",
        "tokenizer_backend": "remote",
        "num_concurrent": 2,
        "max_retries": 1,
        "max_length": 2048,
        **more,
    }


def evaluate(task: dict[str, Any], rows: list[dict[str, Any]], args: dict[str, object]) -> Any:
    """The results of a task over these rows, and its samples."""
    task |= {
        "task": "local",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
        "test_split": "test",
    }
    found = lm_eval.simple_evaluate(
        model="local-completions", model_args=args, tasks=[task], bootstrap_iters=0
    )
    return found["results"]["local"], found["samples"]["local"]


def log_likelihood(llm: LLM, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Of the continuation, and whether it is the likeliest."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
    (output,) = llm.generate([context + continuation], params, use_tqdm=False)
    total, greedy = 0.0, True
    for token, tops in zip(continuation, output.prompt_logprobs[len(context) :], strict=True):
        total += tops[token].logprob
        greedy &= tops[token].rank == 1
    return total, greedy


@pytest.mark.parametrize("more", [{}, {"batch_size": 4}, {"tokenized_requests": False}])
def test_multiple_choice(
    server_url: str, model_name: str, llm: LLM, tokenizer: Any, more: dict[str, object]
) -> None:
    task = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    rows = [{"question": q, "choices": choices, "answer": a} for q, choices, a in FACTS]
    results, samples = evaluate(task, rows, model_args(server_url, model_name, **more))
    right = []
    for (question, choices, answer), sample in zip(FACTS, samples, strict=True):
        context = tokenizer.encode(question, add_special_tokens=False)
        direct = [
            log_likelihood(llm, context, tokenizer.encode(choice, add_special_tokens=False))
            for choice in choices
        ]
        shown = [(float(value), greedy) for value, greedy in sample["filtered_resps"]]
        assert [greedy for _, greedy in shown] == [greedy for _, greedy in direct]
        assert [value for value, _ in shown] == pytest.approx([v for v, _ in direct], abs=1e-5)
        right.append(max(range(len(choices)), key=lambda i: direct[i][0]) == answer)
    assert results["acc,none"] == sum(right) / len(right)
    assert sum(right) >= 4


def test_perplexity(server_url: str, model_name: str, llm: LLM, tokenizer: Any) -> None:
    task = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    }
    results, samples = evaluate(task, [{"text": PASSAGE}], model_args(server_url, model_name))
    tokens = tokenizer.encode(PASSAGE, add_special_tokens=False)
    prefix = [tokenizer.bos_token_id]
    total, _ = log_likelihood(llm, prefix, tokens)
    assert float(samples[0]["filtered_resps"][0]) == pytest.approx(total, abs=1e-4)
    bytes_ = len(PASSAGE.encode())
    assert results["bits_per_byte,none"] == pytest.approx(-total / bytes_ / 0.6931471805599453)


def test_generation_until_a_string(
    server_url: str, model_name: str, llm: LLM, tokenizer: Any
) -> None:
    task = {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": [".", "\n"], "max_gen_toks": 12, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    }
    rows = [{"question": q, "answer": choices[a]} for q, choices, a in FACTS]
    _, samples = evaluate(task, rows, model_args(server_url, model_name))
    params = SamplingParams(temperature=0, max_tokens=12, stop=[".", "\n", tokenizer.eos_token])
    outputs = llm.generate([question for question, _, _ in FACTS], params, use_tqdm=False)
    assert [s["filtered_resps"][0] for s in samples] == [o.outputs[0].text for o in outputs]
