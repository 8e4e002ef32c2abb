"""The extension module of `csrc/module.cpp`.

Arrays are contiguous and their shapes are checked. Precisions are `float32`, `bfloat16` and `int8`.
"""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

PHASES: list[str]
"""What the time of a pass goes to."""

def isas() -> list[str]:
    """Instruction sets that were built and that this CPU runs, best first."""

def source_hash() -> str:
    """What it was built from: `sha256sum CMakeLists.txt csrc/* | sha256sum`."""

def compiler() -> str:
    """Name and version."""

def num_threads(isa: str) -> int:
    """Threads of one parallel region: those of PyTorch's pool."""

class Decoder:
    """Packed weights of a decoder, and its forward pass. One thread at a time.

    In order: `add_rope` for each rope, `add_layer` for each layer, `set_final_norm`, all rows of
    `set_head` and, where it is not tied to it, of `set_embedding`.
    """

    def __init__(
        self,
        *,
        isa: str,
        weights: str,
        kv: str,
        num_layers: int,
        hidden: int,
        intermediate: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab: int,
        norm_eps: float,
        attention_scale: float,
        embedding_scale: float,
        gelu: bool,
        block_size: int,
    ) -> None: ...
    def add_rope(self, frequencies: npt.NDArray[np.float64], magnitude: float) -> None: ...
    def add_layer(
        self,
        *,
        attention_norm: Floats,
        q: Floats,
        k: Floats,
        v: Floats,
        o: Floats,
        mlp_norm: Floats,
        gate: Floats,
        up: Floats,
        down: Floats,
        q_bias: Floats | None,
        k_bias: Floats | None,
        v_bias: Floats | None,
        q_norm: Floats | None,
        k_norm: Floats | None,
        attention_post_norm: Floats | None,
        mlp_post_norm: Floats | None,
        rope: int,
        window: int,
    ) -> None:
        """As in `LayerWeights`; `rope`: index of one that was added; `window` 0: none."""

    def set_final_norm(self, weights: Floats) -> None: ...
    def set_head(self, first: int, rows: Floats) -> None:
        """[rows, hidden] from row `first` on."""

    def set_embedding(self, first: int, rows: Floats) -> None: ...
    def forward(
        self,
        token_ids: Ids,
        spans: Ids,
        tables: Ids,
        outputs: Ids,
        kv: Bytes,
        states: Floats,
        num_threads: int,
    ) -> None:
        """Writes the KV of [tokens] `token_ids` into `kv` [layers, blocks, block_bytes], and the
        state of the rows `outputs` into `states` [outputs, hidden], before the final norm.

        `spans` [chunks, 4]: first row, rows, position of the first, where its table begins in
        `tables`, counted in elements.
        """

    def logits(self, states: Floats, out: Floats, num_threads: int) -> None:
        """[rows, hidden] -> [rows, vocab]."""

    def likeliest(
        self, states: Floats, tokens: npt.NDArray[np.int64], values: Floats, num_threads: int
    ) -> None:
        """[rows, hidden] -> the first token of the largest logit of each row, and that logit."""

    @property
    def weight_bytes(self) -> int: ...
    @property
    def block_bytes(self) -> int:
        """Of one block of one layer, all KV heads."""

    def phase_seconds(self) -> list[float]:
        """Of each of `PHASES`, so far."""

class Product:
    """Packed weights [channels, width], to multiply rows with: for the probe and for tests."""

    def __init__(self, *, isa: str, precision: str, weights: Floats) -> None: ...
    def multiply(self, rows: Floats, out: Floats, num_threads: int) -> None:
        """[rows, width] -> [rows, channels]."""

def record_bytes(isa: str, kv: str, block_size: int, head_dim: int) -> int:
    """Of one block of one KV head of one layer."""

def write_kv(
    *, isa: str, kv: str, block_size: int, cache: Bytes, slots: Ids, k: Floats, v: Floats
) -> None:
    """k, v [tokens, kv_heads, head_dim] into the slots (block * block_size + offset) of one layer's
    cache: for tests."""

def attention(
    *,
    isa: str,
    kv: str,
    block_size: int,
    num_kv_heads: int,
    q: Floats,
    out: Floats,
    cache: Bytes,
    spans: Ids,
    tables: Ids,
    scale: float,
    window: int,
    softcap: float,
    num_threads: int,
) -> None:
    """q, out [rows, heads, head_dim]: for tests, which see to it that nothing reaches outside."""
