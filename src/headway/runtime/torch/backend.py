"""What `TorchExecutor` needs of a model and its KV cache, whoever computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from headway.core.plan import StepPlan
from headway.runtime.inputs import OutputRows

__all__ = ["Backend"]


class Backend(Protocol):
    """Owns weights, KV cache and swap space. Plans come in order, and have been checked.

    Whatever a call raises, the next one finds the backend as if the plan had never been (the
    plan's blocks and swap slots may hold anything).
    """

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def num_swap_blocks(self) -> int:
        """Blocks of the swap space."""
        ...

    @property
    def kv_bytes(self) -> int:
        """Bytes that the KV cache takes."""
        ...

    def hidden(self, plan: StepPlan, known: list[tuple[int, ...]], rows: OutputRows) -> Tensor:
        """Does the plan: copies out, zeroing, copies in, then the chunks, whose KV it writes.

        `known` are the tokens of each chunk, those in flight filled in. Returns the normalised
        hidden states [rows, hidden] of `rows`, in their order.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab], which the caller may overwrite."""
        ...

    def likeliest(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, hidden] -> the first token of the largest logit of each row, and that logit: NaN
        or infinite where it is, or where NaN is among the row's logits. Both [rows]."""
        ...

    def block_copy_s(self, timer: Callable[[], float]) -> float:
        """Seconds that one block's copy to the swap space or back takes, measured now. What
        cache and swap space hold stays."""
        ...
