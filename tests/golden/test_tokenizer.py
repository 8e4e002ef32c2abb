"""The default model's tokenizer against ids that llama.cpp made, and against Transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from headway.models.sources import resolve_model
from headway.models.weights import ModelFile, open_model
from headway.text.chat_template import ChatTemplate
from headway.text.tokenizer import Tokenizer

CASES = json.loads(Path(__file__).with_name("tokenizer_ids.json").read_text())["cases"]
PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "default")

# Transformers leaves SmolLM's split of digits out, which shows in digits other than ASCII's.
TRANSFORMERS_DIFFERS = {"other digits", "arabic"}


@pytest.fixture(scope="module")
def model() -> ModelFile:
    return open_model(resolve_model())


@pytest.fixture(scope="module")
def tokenizer(model: ModelFile) -> Tokenizer:
    return Tokenizer.from_gguf(model.metadata)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_ids_are_llama_cpps(model: ModelFile, pre: str) -> None:
    tokenizer = Tokenizer.from_gguf({**model.metadata, "tokenizer.ggml.pre": pre})
    differing = [
        case["name"]
        for case in CASES
        if tokenizer.encode(case["text"], add_special_tokens=False) != case["ids"][pre]
    ]
    assert differing == []


def test_the_golden_ids_tell_the_pre_tokenizers_apart() -> None:
    assert len({json.dumps([case["ids"][pre] for case in CASES]) for pre in PRE_TOKENIZERS}) == 4


def test_ids_decode_to_the_text_they_came_from(tokenizer: Tokenizer) -> None:
    for case in CASES:
        ids = case["ids"]["smollm"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == case["text"]


def test_ids_are_transformers_where_it_splits_digits_alike(model: ModelFile) -> None:
    theirs = AutoTokenizer.from_pretrained(model.path.parent, gguf_file=model.path.name)
    differing = {
        case["name"]
        for case in CASES
        if theirs.encode(case["text"], add_special_tokens=False) != case["ids"]["smollm"]
    }
    assert differing <= TRANSFORMERS_DIFFERS


def test_the_models_own_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.encode("") == []


def test_the_models_chat_template_gives_the_prompt_it_was_trained_on(
    model: ModelFile, tokenizer: Tokenizer
) -> None:
    source = model.metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    template = ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    text = template.render([{"role": "user", "content": "Hello"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [ids.count(1), ids.count(2)] == [3, 2]


@pytest.mark.parametrize("character", ["a", " ", "\n", "1", "é", "🙂", "日", "-", "\u0301"])
def test_a_long_run_of_one_character_encodes_and_decodes(
    tokenizer: Tokenizer, character: str
) -> None:
    text = character * 100_000 + "x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
