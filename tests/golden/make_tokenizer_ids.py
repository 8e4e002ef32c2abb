"""Makes `tokenizer_ids.json` with llama.cpp's own tokenizer.

    pip download --no-deps --only-binary=:all: -d /tmp/llama llama-cpp-py-sync==0.11739
    python -m zipfile -e /tmp/llama/llama_cpp_py_sync-*.whl /tmp/llama
    PYTHONPATH=/tmp/llama python tests/golden/make_tokenizer_ids.py

The vocabulary is the default model's; the pre-tokenizers other than its own are forced on
it. Needs `cffi`; the library in the wheel needs glibc 2.38.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from headway.models.sources import resolve_model

OUT = Path(__file__).with_name("tokenizer_ids.json")
PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "default")

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
}


def tokenizer(path: Path, pre: str) -> Callable[[str], list[int]]:
    from llama_cpp_py_sync import _cffi_bindings as bindings  # noqa: PLC0415

    ffi, lib = bindings.get_ffi(), bindings.get_lib()
    lib.llama_backend_init()
    overrides = ffi.new("struct llama_model_kv_override[2]")
    overrides[0].tag = lib.LLAMA_KV_OVERRIDE_TYPE_STR
    overrides[0].key = b"tokenizer.ggml.pre"
    overrides[0].val_str = pre.encode()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    params.kv_overrides = overrides
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    vocab = lib.llama_model_get_vocab(model)

    def encode(text: str) -> list[int]:
        data = text.encode()
        ids = ffi.new("llama_token[]", len(data) + 8)
        count = lib.llama_tokenize(vocab, data, len(data), ids, len(data) + 8, False, True)
        assert count >= 0
        return list(ids[0:count])

    encode.keep_alive = overrides  # type: ignore[attr-defined]
    return encode


def main() -> None:
    path = resolve_model()
    encoders = {pre: tokenizer(path, pre) for pre in PRE_TOKENIZERS}
    cases = [
        {"name": name, "text": text, "ids": {pre: enc(text) for pre, enc in encoders.items()}}
        for name, text in CORPUS.items()
    ]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    made = "llama.cpp (llama-cpp-py-sync 0.11739), tests/golden/make_tokenizer_ids.py"
    OUT.write_text(f'{{"made_with": {json.dumps(made)}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
