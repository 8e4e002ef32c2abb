"""Hugging Face directories that are incomplete, broken or hostile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError, ModelError, ModelNotFound, UnsupportedModel
from headway.text.tokenizer import Tokenizer
from unit.text.hf_tokenizers import (
    NAMES,
    NUM_BYTES,
    beginning,
    byte_level,
    load,
    sentencepiece,
    write,
)


def test_without_tokenizer_json_the_error_says_what_works(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"there is no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=r"there is tokenizer\.model and no .* makes one"):
        Tokenizer.from_directory(tmp_path)


def test_a_tokenizer_json_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelError, match=r"tokenizer\.json: cannot be read: Is a directory"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("nested", [False, True])
def test_a_normalizer_that_makes_gigabytes_of_a_prompt_is_refused(
    tmp_path: Path, nested: bool
) -> None:
    def replacing(content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"String": "a"}, "content": content}

    steps = [replacing("a" * 9), replacing("a" * 9)] if nested else [replacing("b" * 65)]
    write(tmp_path, byte_level(normalizer={"type": "Sequence", "normalizers": steps}))
    with pytest.raises(UnsupportedModel, match="normalizer: replaces a character by more than 64"):
        Tokenizer.from_directory(tmp_path)
    write(tmp_path, byte_level(normalizer=replacing("b" * 64)))
    assert Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("tokenizer", 256 << 20),
        *((name, 16 << 20) for name in ("tokenizer_config", "special_tokens_map")),
        *((name, 16 << 20) for name in ("generation_config", "config")),
    ],
)
def test_a_file_beyond_its_bound_is_refused_before_it_is_parsed(
    tmp_path: Path, name: str, most: int
) -> None:
    write(tmp_path, byte_level())
    with (tmp_path / f"{name}.json").open("wb") as file:
        file.truncate(most + 1)
    with pytest.raises(UnsupportedModel, match=rf"{name}\.json: is larger than {most} bytes"):
        Tokenizer.from_directory(tmp_path)


def decoding(*kinds: object) -> dict[str, Any]:
    return byte_level(decoder={"type": "Sequence", "decoders": list(kinds)})


STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (byte_level(decoder=None), "decoder: is missing; those that work: ByteLevel"),
        (
            byte_level(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
            "decoder: is 'WordPiece' at 0",
        ),
        (
            decoding({"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}),
            "decoder: is 'Replace' at 0",
        ),
        (
            decoding({"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 100}),
            "decoder: is 'Replace' at 0",
        ),
        (
            decoding({"type": "Replace", "pattern": {"String": ""}, "content": "b"}),
            "decoder: is 'Replace' at 0",
        ),
        (decoding({"type": "ByteFallback"}, STRIP), "decoder: is 'Strip' at 1"),
        (decoding({"type": "Fuse"}, {**STRIP, "stop": 1}), "decoder: is 'Strip' at 1"),
        (
            byte_level(model={**byte_level()["model"], "end_of_word_suffix": "</w>"}),
            "model.end_of_word_suffix: is not supported",
        ),
    ],
)
def test_tokens_whose_bytes_are_not_known_are_refused_by_name(
    tmp_path: Path, tokenizer: object, message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=rf"tokenizer\.json: {message}"):
        load(tmp_path, tokenizer)


def changed(*path: object, to: object) -> dict[str, Any]:
    """A `tokenizer.json` with another value at `path`."""
    tokenizer = byte_level()
    at: Any = tokenizer
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return tokenizer


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": ""}, r"tokenizer\.json: Input data was truncated"),
        ({"tokenizer": "{}"}, r"tokenizer\.json: .*`model`"),
        ({"tokenizer": "[" * 1_000_000}, r"tokenizer\.json: "),
        ({"tokenizer": '{"model":' * 100_000}, r"tokenizer\.json: .*recursion"),
        ({"tokenizer": '{"x":' + "[" * 1_000_000}, r"tokenizer\.json: .*recursion"),
        ({"tokenizer": changed("model", "vocab", "a", to=-1)}, r"tokenizer\.json: .*u32"),
        ({"tokenizer": changed("model", "vocab", "a", to="x")}, r"tokenizer\.json: .*u32"),
        (
            {"tokenizer": changed("model", "vocab", "a", to=2**32 - 1)},
            r"model\.vocab: has ids up to 4294967295 in \d+ bytes",
        ),
        (
            {"tokenizer": changed("model", "vocab", "a", to=3)},
            r"model\.vocab: .* has id 3, as another has",
        ),
        (
            {"tokenizer": changed("model", "merges", 0, to=["a", "zz"])},
            r"tokenizer\.json: .*`zz` out of vocabulary",
        ),
        (
            {"tokenizer": changed("added_tokens", 0, "id", to=4_000_000_000)},
            rf"added_tokens: '<s>' has id 4000000000, and {NUM_BYTES + 1} follows",
        ),
        ({"tokenizer": changed("added_tokens", 1, "id", to=0)}, "added_tokens: '</s>' has id 0"),
        (
            {"tokenizer": changed("added_tokens", 1, "id", to=None)},
            r"tokenizer\.json: .*invalid type: null",
        ),
        (
            {"tokenizer": changed("pre_tokenizer", to={
                "type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False
            })},
            r"tokenizer\.json: .*unmatched parenthesis",
        ),
        (
            {"tokenizer": byte_level(post_processor=beginning("<s>", 4_000_000_000))},
            "post_processor: 4000000000 is no token id",
        ),
        # The backend panics.
        (
            {"tokenizer": byte_level(post_processor=beginning("<s>", known=False))},
            "post_processor: no entry found",
        ),
        ({"tokenizer_config": ""}, r"tokenizer_config\.json: Input data was truncated"),
        ({"tokenizer_config": "[]"}, r"tokenizer_config\.json: Expected `object`"),
        ({"tokenizer_config": {"bos_token": 3}}, r"tokenizer_config\.json: .*\$\.bos_token"),
        ({"tokenizer_config": '{"bos_token": "\\ud800"}'}, r"tokenizer_config\.json: "),
        ({"tokenizer_config": {"bos_token": "<q>"}}, "bos_token: '<q>' is no token"),
        ({"special_tokens_map": {"eos_token": {}}}, r"special_tokens_map\.json: .*eos_token"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, r"added_tokens_decoder"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, r"added_tokens_decoder"),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"99999999999": {"content": "<x>"}}}},
            r"added_tokens_decoder\.99999999999: '<x>' is not in tokenizer\.json",
        ),
        ({"generation_config": {"eos_token_id": "x"}}, r"generation_config\.json: .*eos_token_id"),
        ({"generation_config": {"eos_token_id": [1, None]}}, r"generation_config\.json: .*eos_to"),
        ({"generation_config": {"eos_token_id": True}}, r"generation_config\.json: .*eos_token_id"),
        ({"generation_config": {"eos_token_id": 1.0}}, r"generation_config\.json: .*eos_token_id"),
        ({"generation_config": {"eos_token_id": [-1]}}, "eos_token_id: -1 is no token id"),
        ({"config": {"eos_token_id": 10**6}}, r"config\.json: eos_token_id: 1000000 is no token"),
    ],
)  # fmt: skip
def test_a_broken_file_is_an_error_that_names_it_and_the_field(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(tmp_path, **{"tokenizer": byte_level(), **files})


LIMITED = """
import resource, sys
from pathlib import Path
from headway.errors import ModelError
from headway.text.tokenizer import Tokenizer

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 2**28
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        print(Tokenizer.from_directory(Path(path)).encode("ab"))
    except ModelError:
        print("refused")
"""


def test_a_small_file_takes_little_memory_whatever_it_says(tmp_path: Path) -> None:
    padding = {
        "strategy": {"Fixed": 2**40},
        "direction": "Right",
        "pad_to_multiple_of": 2**40,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    tokenizers = [
        changed("model", "vocab", "a", to=2**32 - 1),
        changed("added_tokens", 0, "id", to=2**32 - 1),
        byte_level(post_processor=beginning("<s>", *[2**32 - 1] * 99)),
        byte_level(padding=padding),
    ]
    directories = [tmp_path / str(index) for index in range(len(tokenizers))]
    for directory, tokenizer in zip(directories, tokenizers, strict=True):
        directory.mkdir()
        write(directory, tokenizer)
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, directories)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split("\n") == ["refused"] * 3 + [str([NUM_BYTES]), ""]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
def test_any_value_anywhere_is_read_or_refused_with_an_error_of_ours(
    tmp_path: Path, data: st.DataObject
) -> None:
    tokenizer = sentencepiece()
    at: Any = tokenizer
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(VALUES)
    try:
        loaded = load(tmp_path, tokenizer, tokenizer_config=NAMES)
        loaded.decode(loaded.encode("ab é"))
    except HeadwayError:
        pass
