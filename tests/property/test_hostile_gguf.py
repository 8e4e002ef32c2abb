"""GGUF files that are broken or mean harm: each works, or is refused in one short message."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from headway.text.sentencepiece import byte_tokens
from property.hostile import tries, use_model
from unit.models import gguf_files
from unit.models.gguf_files import HEAD_DIM, HIDDEN
from unit.text import vocabulary

NUMBERS = [0, 1, 2, 3, 7, 8, 9, 10, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
WIDE = [*NUMBERS, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 33, 2**64 - 1]
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def llama() -> tuple[dict[str, object], dict[str, np.ndarray], str]:
    """Byte-level, with divisors of the rotary frequencies."""
    metadata = gguf_files.llama_metadata() | vocabulary.metadata(add_bos_token=True)
    metadata["tokenizer.chat_template"] = TEMPLATE
    metadata["general.alignment"] = 32
    tensors = with_vocabulary(gguf_files.llama_tensors(), len(vocabulary.TOKENS))
    tensors["rope_freqs.weight"] = np.ones(HEAD_DIM // 2, np.float32)
    return metadata, tensors, "llama"


def gemma() -> tuple[dict[str, object], dict[str, np.ndarray], str]:
    """SentencePiece, with windows."""
    tokens = ("<pad>", "<eos>", "<bos>", "<unk>", *byte_tokens(), "▁", "e", "l", "el", "▁el", "▁▁")
    metadata = {
        **{key.replace("llama.", "gemma3."): v for key, v in gguf_files.llama_metadata().items()},
        "gemma3.attention.key_length": HEAD_DIM,
        "gemma3.attention.value_length": HEAD_DIM,
        "gemma3.attention.sliding_window": 8,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": (3, 3, 3, 2, *(6 for _ in range(256)), *(1,) * 6),
        "tokenizer.ggml.scores": tuple(float(-index) for index in range(len(tokens))),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    tensors = with_vocabulary(gguf_files.llama_tensors(), len(tokens))
    for layer in range(2):
        for name, width in {"attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}.items():
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(width, np.float32)
        for name in ("post_attention_norm", "post_ffw_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    return metadata, tensors, "gemma3"


def with_vocabulary(tensors: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    return {**tensors, "token_embd.weight": np.ones((size, HIDDEN), np.float32)}


MODELS = {"llama": llama(), "gemma": gemma()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "model.gguf"


@pytest.fixture(scope="module")
def sound(path: Path) -> dict[str, bytes]:
    files = {}
    for name, model in MODELS.items():
        gguf_files.write_gguf(path, *model)
        assert use_model(path) is None
        files[name] = path.read_bytes()
    return files


def places(data: bytes) -> list[tuple[int, int]]:
    """Where a sound file has its counts, lengths, types, dimensions and numbers: start, width."""
    found: list[tuple[int, int]] = [(4, 4), (8, 8), (16, 8)]
    num_tensors, num_fields = struct.unpack_from("<QQ", data, 8)
    at = 24

    def take(width: int) -> int:
        nonlocal at
        found.append((at, width))
        value = int.from_bytes(data[at : at + width], "little")
        at += width
        return value

    def text() -> None:
        nonlocal at
        length = take(8)
        at += length

    def value(kind: int) -> None:
        if kind == STRING:
            text()
        elif kind == ARRAY:
            item, count = take(4), take(8)
            for _ in range(count):
                value(item)
        else:
            take(SCALAR_BYTES[kind])

    for _ in range(num_fields):
        text()
        value(take(4))
    for _ in range(num_tensors):
        text()
        for width in (8,) * take(4):
            take(width)
        take(4)
        take(8)
    return found


def damaged(pen: random.Random, data: bytes, spots: list[tuple[int, int]]) -> bytes:
    """`data` with one to three faults."""
    result = bytearray(data)
    header_end = sum(spots[-1])
    # Most places are lengths of tokens: the others would hardly ever be met.
    width_of = [spot for spot in spots if spot[1] != 8] + pen.sample(spots, 40) + spots[-60:]
    for _ in range(pen.randint(1, 3)):
        at = pen.randrange(header_end if pen.random() < 0.9 else len(result))
        match pen.choice(["number", "number", "number", "flip", "cut", "drop", "add", "wide"]):
            case "number":
                at, width = pen.choice(width_of)
                new = pen.choice(WIDE if width == 8 else NUMBERS) % 256**width
                result[at : at + width] = new.to_bytes(width, "little")
            case "flip":
                result[at % len(result)] ^= 1 << pen.randrange(8)
            case "cut":
                del result[at:]
            case "drop":
                del result[at : at + pen.choice([1, 4, 8, 32, 1000])]
            case "add":
                result[at:at] = pen.randbytes(pen.choice([1, 4, 8, 32, 1000]))
            case "wide":
                result[at : at + 8] = pen.choice(WIDE).to_bytes(8, "little")
    return bytes(result)


@given(seed=st.integers(0, 2**64 - 1), name=st.sampled_from(sorted(MODELS)))
@tries(200)
def test_a_file_with_wrong_bytes_works_or_is_refused(
    seed: int, name: str, sound: dict[str, bytes], path: Path
) -> None:
    path.write_bytes(damaged(random.Random(seed), sound[name], places(sound[name])))
    note(str(use_model(path)))


# Well-formed files that say wrong things.

Tensor = tuple[str, tuple[int, ...], int, bytes]
"""Name, shape in NumPy order, ggml type, bytes."""
Content = tuple[dict[str, object], list[Tensor]]

TEXTS = ["", "x", "gpt2", "llama", "none", "yarn", "linear", "longrope", "\0", "é\u2028", "{% if"]
LONG = "lo" * 5_000
INTEGERS = [-1, *WIDE]
FLOATS = [0.0, -1.0, 1e-45, 1e-30, 0.5, 1.0, 8.0, 1e30, 3e38, float("inf"), float("nan")]
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    8: (32, 34),
    12: (256, 144),
    14: (256, 210),
    30: (1, 2),
}


def any_value(pen: random.Random) -> object:
    match pen.randrange(6):
        case 0:
            return pen.choice(INTEGERS)
        case 1:
            return pen.choice(FLOATS)
        case 2:
            return pen.choice([*TEXTS, LONG])
        case 3:
            return pen.random() < 0.5
        case 4:
            item = pen.choice([pen.choice(NUMBERS), pen.choice(FLOATS), pen.choice(TEXTS), LONG])
            return (item,) * pen.choice([0, 1, 2, 10, 268])
        case _:
            return tuple(f"{pen.choice(TEXTS)}{index}" for index in range(pen.choice([10, 268])))


def encoded(value: object) -> tuple[int, bytes]:
    """Its GGUF type and bytes."""
    match value:
        case bool():
            return 7, bytes([value])
        case int():
            if 0 <= value < 2**32:
                return 4, struct.pack("<I", value)
            return (10, struct.pack("<Q", value)) if value > 0 else (5, struct.pack("<i", value))
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return STRING, gguf_files.string(value)
        case tuple():
            items = [encoded(item) for item in value] or [(4, b"")]
            kind = items[0][0]
            head = struct.pack("<IQ", kind, len(value))
            return ARRAY, head + b"".join(item for _, item in items)
    raise AssertionError(value)


def written(content: Content) -> bytes:
    metadata, tensors = content
    described, data = [], b""
    for name, shape, kind, values in tensors:
        described.append(gguf_files.tensor(name, shape, kind, len(data)))
        data += values + bytes(-len(values) % 32)
    fields = tuple(gguf_files.field(key, *encoded(value)) for key, value in metadata.items())
    return gguf_files.raw_gguf(fields=fields, tensors=tuple(described), data=data)


def content_of(name: str) -> Content:
    metadata, tensors, architecture = MODELS[name]
    described = [(key, values.shape, 0, values.tobytes()) for key, values in tensors.items()]
    return {"general.architecture": architecture, **metadata}, described


def disturb_metadata(pen: random.Random, metadata: dict[str, object]) -> None:
    key = pen.choice([*metadata, "rope.scaling.type", "rope.scaling.factor"])
    if key.startswith("rope"):
        key = f"{metadata.get('general.architecture')}.{key}"
    value = metadata.get(key)
    match pen.randrange(6):
        case 0:
            metadata.pop(key, None)
        case 1:
            metadata[pen.choice([f"{key}.x", LONG, "", "split.count", "llama.expert_count"])] = (
                any_value(pen)
            )
        case 2 if isinstance(value, tuple) and value:
            items = list(value)
            kind = type(items[0])
            item = {int: 2**31, float: pen.choice(FLOATS), str: pen.choice([*TEXTS, LONG])}[kind]
            items[pen.randrange(len(items))] = item
            metadata[key] = tuple(items)
        case 3 if isinstance(value, tuple):
            metadata[key] = value[: pen.randrange(len(value) + 1)]
        case _:
            metadata[key] = any_value(pen)


def disturb_tensors(pen: random.Random, tensors: list[Tensor]) -> None:
    index = pen.randrange(len(tensors))
    name, shape, kind, values = tensors[index]
    match pen.randrange(6):
        case 0:
            del tensors[index]
        case 1:
            tensors.insert(pen.randrange(len(tensors)), tensors[index])
        case 2:
            new = pen.choice([LONG, "", "output.weight", name + "x", f"blk.{2**40}.attn_q.weight"])
            tensors[index] = (new, shape, kind, values)
        case 3:
            new_shape = pen.choice(
                [shape[::-1], (*shape, 1), (1, *shape), (1, 1, *shape)[:4], (1,)]
            )
            tensors[index] = (name, new_shape, kind, values)
        case 4:
            dims = [pen.choice([0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1]) for _ in shape]
            tensors[index] = (name, tuple(dims), kind, values)
        case _:
            kind, (items, size) = pen.choice(list(BLOCKS.items()))
            num_bytes = -(-shape[-1] // items) * size * (len(values) // 4 // shape[-1])
            tensors[index] = (name, shape, kind, pen.randbytes(num_bytes))


@given(seed=st.integers(0, 2**64 - 1), name=st.sampled_from(sorted(MODELS)))
@tries(200)
def test_a_file_that_says_wrong_things_works_or_is_refused(
    seed: int, name: str, path: Path
) -> None:
    pen = random.Random(seed)
    metadata, tensors = content_of(name)
    for _ in range(pen.randint(1, 3)):
        if pen.random() < 0.7:
            disturb_metadata(pen, metadata)
        elif tensors:
            disturb_tensors(pen, tensors)
    path.write_bytes(written((metadata, tensors)))
    note(str(use_model(path)))


@pytest.mark.parametrize("name", MODELS)
def test_the_undisturbed_file_works(name: str, path: Path) -> None:
    path.write_bytes(written(content_of(name)))
    assert use_model(path) is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((gguf_files.field("k" * 1001, 7, b"\1"),), "key of metadata field 0: has 1001 characters"),
        (
            (gguf_files.field("k", 9, struct.pack("<IQ", 7, 2**22 + 1) + bytes(2**22 + 1)),),
            "k: has 4194305 items; 4194304 in all",
        ),
        (
            tuple(gguf_files.field(str(n), 7, b"\1") for n in range(2**16 + 1)),
            "metadata count: is 65537; up to 65536",
        ),
    ],
)
def test_more_than_any_model_has_is_not_read(
    fields: tuple[bytes, ...], reason: str, path: Path
) -> None:
    path.write_bytes(gguf_files.raw_gguf(fields=fields))
    assert reason in str(use_model(path))


def test_most_faults_are_found(sound: dict[str, bytes], path: Path) -> None:
    """So that the faults are real ones: a test of the tests above."""
    found = 0
    for seed in range(60):
        path.write_bytes(damaged(random.Random(seed), sound["llama"], places(sound["llama"])))
        found += use_model(path) is not None
    assert 30 < found < 60
