"""Tokenizers against ids that llama.cpp made, and against Transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from golden.gemma import gemma_file
from golden.make_tokenizer_ids import (
    NOT_REVERSIBLE,
    PRE_TOKENIZERS,
    SAME,
    byte_level_metadata,
    sentencepiece_metadata,
)
from headway.models.gguf import GGUFFile
from headway.text.chat_template import ChatTemplate
from headway.text.detokenizer import IncrementalDetokenizer
from headway.text.gguf_vocabulary import read_gguf_vocabulary
from headway.text.tokenizer import Tokenizer

CASES = json.loads(Path(__file__).with_name("tokenizer_ids.json").read_text())["cases"]
TEXTS: dict[str, str] = {case["name"]: case["text"] for case in CASES}
IDS: dict[str, dict[str, list[int]]] = {
    case["name"]: {
        vocabulary: ids for names, ids in case["ids"].items() for vocabulary in names.split()
    }
    for case in CASES
}

# Transformers leaves SmolLM's split of digits out, which shows in digits other than ASCII's.
TRANSFORMERS_DIFFERS = {"other digits", "arabic"}


@pytest.fixture(scope="module")
def metadata(model_path: Path) -> dict[str, object]:
    return dict(GGUFFile.open(model_path).metadata)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def gemma() -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(gemma_file()).metadata)


def differing(tokenizer: Tokenizer, vocabulary: str) -> list[str]:
    """Names of the texts whose ids are not the golden ones."""
    return [
        name
        for name, text in TEXTS.items()
        if tokenizer.encode(text, add_special_tokens=False) != IDS[name][vocabulary]
    ]


def irreversible(tokenizer: Tokenizer, vocabulary: str, prefix: str = "") -> list[str]:
    """Names of the texts that do not come back, whole or streamed; a `prefix` is the model's."""

    def back(name: str, ids: list[int]) -> set[str]:
        stream = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        streamed = "".join(stream.feed([token]) for token in ids) + stream.flush()
        return {tokenizer.decode(ids, skip_special_tokens=False), streamed}

    return [
        name
        for name, text in TEXTS.items()
        if name not in NOT_REVERSIBLE
        and back(name, IDS[name][vocabulary]) != {prefix + text if text else ""}
    ]


def test_ids_are_llama_cpps(tokenizer: Tokenizer) -> None:
    assert differing(tokenizer, "smollm2") == []


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_ids_of_each_pre_tokenizer_are_llama_cpps_and_mistrals(pre: str) -> None:
    assert differing(Tokenizer.from_gguf(byte_level_metadata(pre)), pre) == []


@pytest.mark.parametrize(("name", "same"), SAME.items())
def test_another_name_of_a_pre_tokenizer_is_the_same(name: str, same: str) -> None:
    assert differing(Tokenizer.from_gguf(byte_level_metadata(name)), same) == []


def test_ids_of_gemma_are_llama_cpps(gemma: Tokenizer) -> None:
    assert differing(gemma, "gemma") == []


@pytest.mark.parametrize(
    ("vocabulary", "prefix"), [("sentencepiece", True), ("sentencepiece-no-prefix", False)]
)
def test_ids_of_a_sentencepiece_vocabulary_are_llama_cpps(vocabulary: str, prefix: bool) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=prefix))
    assert differing(tokenizer, vocabulary) == []


def test_the_golden_ids_tell_the_pre_tokenizers_apart() -> None:
    told_apart = {json.dumps([ids[pre] for ids in IDS.values()]) for pre in PRE_TOKENIZERS}
    # But for smaug-bpe, which is llama-bpe without whole words: here merges reach them all.
    assert len(told_apart) == len(PRE_TOKENIZERS) - 1


def test_ids_decode_to_the_text_they_came_from(tokenizer: Tokenizer, gemma: Tokenizer) -> None:
    assert irreversible(tokenizer, "smollm2") == []
    assert irreversible(gemma, "gemma") == []


def test_without_a_space_prefix_sentencepiece_ids_decode_to_the_text_they_came_from() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False))
    assert irreversible(tokenizer, "sentencepiece-no-prefix") == []


def test_ids_are_transformers_where_it_splits_digits_alike(model_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(model_path.parent, gguf_file=model_path.name)
    differing = {
        name
        for name, text in TEXTS.items()
        if theirs.encode(text, add_special_tokens=False) != IDS[name]["smollm2"]
    }
    assert differing <= TRANSFORMERS_DIFFERS


def test_the_models_own_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2, 0))
    assert tokenizer.encode("") == []


def test_gemma_begins_with_bos_and_ends_with_a_turn_too(gemma: Tokenizer) -> None:
    assert gemma.vocab_size == 262144
    assert (gemma.bos_token, gemma.eos_token) == ("<bos>", "<eos>")
    assert [gemma.token_text(end) for end in gemma.eos_token_ids] == ["<eos>", "<end_of_turn>"]
    assert gemma.encode("Hi") == [2, *gemma.encode("Hi", add_special_tokens=False)]
    assert gemma.decode(gemma.encode("Hi there")) == "Hi there"


def test_the_models_chat_template_gives_the_prompt_it_was_trained_on(
    metadata: dict[str, object], tokenizer: Tokenizer
) -> None:
    source = metadata["tokenizer.chat_template"]
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
    tokenizer: Tokenizer, gemma: Tokenizer, character: str
) -> None:
    text = character * 100_000 + "x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert gemma.decode(gemma.encode(text)) == text


def saved(backend: BackendTokenizer, directory: Path, **names: str) -> Path:
    """A Hugging Face directory, written by Transformers."""
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(directory)
    return directory


def check_against_transformers(directory: Path) -> None:
    """Ids and text over the corpus, with and without special tokens."""
    theirs = AutoTokenizer.from_pretrained(directory)
    ours = Tokenizer.from_directory(directory)
    for name, text in TEXTS.items():
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids, name
            decoded = ours.decode(ids, skip_special_tokens=special)
            # Ours keeps the space that the model puts before a text.
            assert theirs.decode(ids, skip_special_tokens=special) in (decoded, decoded[1:]), name
    assert (ours.vocab_size, ours.bos_token_id) == (len(theirs), theirs.bos_token_id)
    assert ours.eos_token_ids == (theirs.eos_token_id,)


def test_a_directory_of_byte_level_bpe_is_as_in_transformers(
    metadata: dict[str, object], tmp_path: Path
) -> None:
    backend = read_gguf_vocabulary({**metadata, "tokenizer.ggml.add_bos_token": True}).backend
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    check_against_transformers(saved(backend, tmp_path, **names))


@pytest.mark.parametrize("prefix", [True, False])
def test_a_directory_of_sentencepiece_bpe_is_as_in_transformers(
    tmp_path: Path, prefix: bool
) -> None:
    backend = read_gguf_vocabulary(sentencepiece_metadata(add_space_prefix=prefix)).backend
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    check_against_transformers(saved(backend, tmp_path, bos_token="<s>", eos_token="</s>"))


def test_a_directory_of_unigram_tokens_is_as_in_transformers(tmp_path: Path) -> None:
    backend = BackendTokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    marks = ["<unk>", "<s>", "</s>"]
    backend.train_from_iterator(
        [text[:500] for text in TEXTS.values()],
        trainers.UnigramTrainer(
            vocab_size=600, special_tokens=marks, unk_token="<unk>", show_progress=False
        ),
    )
    check_against_transformers(saved(backend, tmp_path, bos_token="<s>", eos_token="</s>"))
