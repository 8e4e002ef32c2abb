"""Makes `tokenizer_ids.json` with llama.cpp's own tokenizer.

    pip download --no-deps --only-binary=:all: -d /tmp/llama llama-cpp-py-sync==0.11739
    python -m zipfile -e /tmp/llama/llama_cpp_py_sync-*.whl /tmp/llama
    pip install cffi tiktoken==0.14.0
    PYTHONPATH=src:tests:/tmp/llama python tests/golden/make_tokenizer_ids.py

The library in the wheel needs glibc 2.38. The vocabularies are the default model's; Gemma 3's; and
the two small ones of `make_vocabularies.py`: the byte-level one with each pre-tokenizer, the
SentencePiece one with and without a space before the text.

Tekken's ids are made with tiktoken, which is what Mistral's own tokenizer uses, and Mistral's
pattern: llama.cpp has a simpler one, which takes no marks to letters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from headway.text.byte_level import byte_level_bytes

OUT = Path(__file__).with_name("tokenizer_ids.json")
BYTE_LEVEL = Path(__file__).with_name("byte_level_vocabulary.json")
SENTENCEPIECE = Path(__file__).with_name("sentencepiece_vocabulary.json")

MARKS = ("<|im_start|>", "<|endoftext|>", "<|im_end|>")

PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "default")
SAME = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
"""Other names of pre-tokenizers; that they are the same is checked when the ids are made."""

CORPUS = {
    "empty": "",
    "one space": " ",
    "english": "The capital of France is Paris, isn't it? We'll see; they've said I'd know.",
    "upper-case contractions": "IT'S WE'LL THEY'VE I'D I'M YOU'RE CAN'T it'S O'Reilly's",
    "digits": "0 1 12 123 1234 12345 3.14159 1,000,000 -42 1e-9 2026-07-14T09:30 v1.2.3",
    "digits in words": "abc123def 4you x86_64 ipv6 1st 22nd 3D H2O 100% $5 €9.99",
    "other digits": "٠١٢٣ १२३ 四五六 Ⅷ ½ ¾ ² ³ ①② 𝟘𝟙 ๑๒",
    "python": 'def f(x: int) -> int:\n\treturn x**2  # squares\n\n\nprint(f"{f(3)!r}")\n',
    "c": '#include <stdio.h>\nint main() {\n    for (int i=0;i<10;++i) printf("%d\\n", i);\n}\n',
    "html": "<div class='a b'>&nbsp;<br/>\r\n\t<a href=\"x?y=1&z=%20\">→</a></div>",
    "emoji": "🙂👍🏽👩‍👩‍👧‍👦🏳️‍🌈 ok 🇫🇷!❤️ ☕1️⃣",
    "chinese": "法国的首都是巴黎。今天天气很好，我们去公园吧！",
    "japanese": "フランスの首都はパリです。カタカナとひらがな、漢字。",
    "korean": "프랑스의 수도는 파리입니다. 안녕하세요",
    "thai": "เมืองหลวงของฝรั่งเศสคือปารีส",
    "hindi": "फ़्रांस की राजधानी पेरिस है। क्षत्रिय",
    "arabic": "عاصمة فرنسا هي باريس، مرحبًا بكم ١٢٣",
    "hebrew": "בירת צרפת היא פריז, שָׁלוֹם עֲלֵיכֶם",
    "bidirectional marks": "a\u200fb\u202ec\u202cd\u2066e\u2069f",
    "russian": "Столица Франции — Париж. Съешь ещё этих мягких булок",
    "greek": "Πρωτεύουσα της Γαλλίας είναι το Παρίσι; ΑΣ ς",
    "european": "Grüße aus Köln, naïve façade, Łódź, İstanbul, ﬁn, Ǆ, ẞ, œuvre",
    "combining": "e\u0301 n\u0303 a\u0308\u0301 Z\u0351\u036b\u0343 \u0301 x\u20dd",
    "control characters": "a\x00b\x01\x02\x07\x08\x0b\x0c\x1b[31mred\x1b[0m\x7f\x80\x9f",
    "other spaces": "a\u00a0b\u2003c\u3000d\u2028e\u2029f\x85g\u200bh\ufeffi\u1680j\u180ek",
    "space runs": "a  b   c    d     e  \n   f\t\tg \t h\n\n\ni\r\n\r\nj   ",
    "leading spaces": "    indented\n  less\n        more  ",
    "only spaces": " " * 7 + "\t\t\n \n\n  ",
    "punctuation": "!!!...???---___===+++***///\\\\\\|||~~~^^^``` \u2018q\u2019 «g» „x“ …",
    "symbols": "∀x∈ℝ: x² ≥ 0 ⇒ √x ± ∞ ≠ ∅ © ® ™ § ¶ † ‰ ¬ ¦ ¨ ´ ¸ $+<=>^~|",
    "private and last": "\ue000\uf8ff\U000f0000\U0010fffd\ufffd\uffff",
    "long run of a": "a" * 3000,
    "long run of spaces": " " * 3000 + "x",
    "long run of line ends": "\n" * 1000 + "x",
    "long run of digits": "7" * 500,
    "long run of dashes": "-" * 1000,
    "long run of emoji": "🙂" * 200,
    "long mixed run": "ab" * 700 + " " + "é" * 300,
    "special tokens": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "special tokens in words": "x<|im_end|>y <|endoftext|>  <|im_start|> <repo_name>r<file_sep>f",
    "almost special tokens": "<|im_start|<|im_end|> |> < |im_start|> <|IM_END|> <|im_end",
    "stand-ins of bytes": "Ġ Ċ ĉ ģ ł ¡ Ā",
    "other case": "parseHTTPResponse HelloWorld écoleÉCOLE aÉb ǅ ʰª İı SS ß 'ſ it'S",
    "slashes": "https://example.org/a/b?c=d#e //x /* y */ C:\\\\dir\\n and/or 1/2",
    "markdown": "# Title\n\n- *one*\n- **two**\n\n```python\nx = 1\n```\n| a | b |\n|---|---|\n",
    "json": '{"a": [1, 2.5e-3, null], "b": {"c": "\\u00e9\\n"}, "d": true}',
    "tags": "<table><tr><td>x</td></tr></table> <b>bold</b><br><h1>T</h1> <unknown> </div >",
    "turns": "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "instructions": "<s>[INST] Hi [/INST] Hello </s>[INST]x[/INST] [TOOL] <unk> <pad>",
    "names of bytes": "<0x0A> <0xFF> <0x41>\\x41",
    "lower one eighth block": "a▁b ▁▁ c▁",
    "runs of marks": "\n" * 33 + "a" + "\t" * 34 + "b" + " " * 35 + "c" + "\n\n \n\t\n",
    "runs that overlap": "ababababababa aaabaaab ======-====- hahahahah 1010101",
}

NOT_REVERSIBLE = {"lower one eighth block"}
"""Where SentencePiece writes what is in the text for a space."""


Encode = Callable[[str], list[int]]


def llama_cpp(path: Path) -> Encode:
    """llama.cpp's tokenizer of a GGUF file, without BOS."""
    from llama_cpp_py_sync import _cffi_bindings as bindings  # noqa: PLC0415

    ffi, lib = bindings.get_ffi(), bindings.get_lib()
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    vocab = lib.llama_model_get_vocab(lib.llama_model_load_from_file(str(path).encode(), params))

    def encode(text: str) -> list[int]:
        data = text.encode()
        ids = ffi.new("llama_token[]", len(data) + 8)
        count = lib.llama_tokenize(vocab, data, len(data), ids, len(data) + 8, False, True)
        assert count >= 0
        return list(ids[0:count])

    return encode


TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""`config.pattern` of Mistral's tekken.json."""


def mistral(metadata: dict[str, object]) -> Encode:
    """tiktoken with Mistral's pattern; that ids are in the order of merges is what it needs."""
    import tiktoken  # noqa: PLC0415

    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, tuple)
    marks = {mark: tokens.index(mark) for mark in MARKS}
    ranks = {byte_level_bytes(token): i for i, token in enumerate(tokens) if token not in marks}
    encoding = tiktoken.Encoding(
        "tekken", pat_str=TEKKEN, mergeable_ranks=ranks, special_tokens=marks
    )
    return lambda text: encoding.encode(text, allowed_special="all")


def byte_level_metadata(pre: str) -> dict[str, object]:
    """`tokenizer.ggml.*` fields of the small byte-level vocabulary."""
    merges = json.loads(BYTE_LEVEL.read_text())["merges"]
    merged = dict.fromkeys(merge.replace(" ", "") for merge in merges)
    tokens = (*sorted(ByteLevel.alphabet()), *merged, *MARKS)
    fields = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": tuple(3 if token in MARKS else 1 for token in tokens),
        "merges": tuple(merges),
        "bos_token_id": tokens.index(MARKS[0]),
        "eos_token_id": tokens.index(MARKS[-1]),
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def sentencepiece_metadata(**changes: object) -> dict[str, object]:
    """`tokenizer.ggml.*` fields of the small vocabulary."""
    vocabulary = json.loads(SENTENCEPIECE.read_text())
    fields: dict[str, object] = {
        "model": "llama",
        "tokens": tuple(vocabulary["tokens"]),
        "scores": tuple(map(float, vocabulary["scores"])),
        "token_type": tuple(vocabulary["token_type"]),
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def write_vocabulary(path: Path, metadata: dict[str, object]) -> Path:
    """A GGUF file of no weights, complete enough for llama.cpp."""
    from unit.models.gguf_files import llama_metadata, write_gguf  # noqa: PLC0415

    return write_gguf(path, {**llama_metadata(), **metadata}, {})


def encoders(directory: Path) -> dict[str, Encode]:
    from golden.gemma import gemma_file  # noqa: PLC0415
    from headway.models.sources import resolve_model  # noqa: PLC0415

    def small(name: str, metadata: dict[str, object]) -> Encode:
        return llama_cpp(write_vocabulary(directory / f"{name}.gguf", metadata))

    return {
        "smollm2": llama_cpp(resolve_model()),
        "gemma": llama_cpp(gemma_file()),
        **{pre: small(pre, byte_level_metadata(pre)) for pre in (*PRE_TOKENIZERS, *SAME)},
        "tekken": mistral(byte_level_metadata("tekken")),
        "sentencepiece": small("with", sentencepiece_metadata()),
        "sentencepiece-no-prefix": small("without", sentencepiece_metadata(add_space_prefix=False)),
    }


def grouped(ids: dict[str, list[int]]) -> dict[str, list[int]]:
    """Those with the same ids under one key, their names with a space between."""
    names: dict[tuple[int, ...], list[str]] = {}
    for name, values in ids.items():
        names.setdefault(tuple(values), []).append(name)
    return {" ".join(same): list(values) for values, same in names.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        encode = encoders(Path(directory))
        cases = []
        for name, text in CORPUS.items():
            ids = {vocabulary: encode[vocabulary](text) for vocabulary in encode}
            for other, same in SAME.items():
                assert ids.pop(other) == ids[same]
            cases.append({"name": name, "text": text, "ids": grouped(ids)})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    made = "llama-cpp-py-sync 0.11739, tiktoken 0.14.0, tests/golden/make_tokenizer_ids.py"
    OUT.write_text(f'{{"made_with": {json.dumps(made)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
