"""An `EngineCore` over a random model of microseconds, whose tokens are characters."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from headway.clock import MonotonicClock
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.plan import Executor, StepPlan, StepResult
from headway.core.policy import FCFSPolicy
from headway.core.scheduler import Scheduler
from headway.engine.core import EngineCore
from headway.engine.outputs import OutputProcessor
from headway.errors import InvalidRequest, RequestTooLarge
from headway.grammar.pool import GrammarPool
from headway.runtime.reference import ReferenceExecutor
from headway.text.tokenizer import Tokenizer
from tiny import TINY, tiny_weights

__all__ = [
    "ALPHABET",
    "MAX_MODEL_LEN",
    "NUM_BLOCKS",
    "AlphabetTokenizer",
    "GatedExecutor",
    "tiny_core",
    "tiny_executor",
]

MAX_MODEL_LEN = 128
NUM_BLOCKS = 64
ALPHABET = "".join(map(chr, range(ord("A"), ord("A") + TINY.vocab_size)))


class AlphabetTokenizer:
    special_texts = ()

    vocab_size = len(ALPHABET)
    bos_token_id = bos_token = eos_token = None
    eos_token_ids = ()

    def encode(
        self, text: str, *, add_special_tokens: bool = True, at_most: int | None = None
    ) -> list[int]:
        if at_most is not None and len(text) > at_most:
            raise RequestTooLarge("prompt", f"{len(text)} characters are more than {at_most}")
        if not set(text) <= set(ALPHABET):
            raise InvalidRequest("prompt", "there are no tokens for it")
        return [ALPHABET.index(character) for character in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if not all(0 <= token < len(ALPHABET) for token in ids):
            raise ValueError("there is no such token")
        return "".join(ALPHABET[token] for token in ids)

    def token_bytes(self, token_id: int) -> bytes:
        return ALPHABET[token_id].encode()

    def token_text(self, token_id: int) -> str:
        return ALPHABET[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


class GatedExecutor:
    """Holds every step while the gate is closed, and fails those that have `poison` in them."""

    def __init__(self, inner: Executor, gate: threading.Event) -> None:
        self._inner = inner
        self._gate = gate
        self.entered = threading.Event()
        self.poison: int | None = None

    def submit(self, plan: StepPlan) -> StepResult:
        self.entered.set()
        self._gate.wait()
        if any(self.poison in chunk.token_ids for chunk in plan.chunks):
            raise RuntimeError("a bad token")
        return self._inner.submit(plan)

    def collect(self, handle: StepResult) -> StepResult:
        return self._inner.collect(handle)


def tiny_executor(num_blocks: int = NUM_BLOCKS) -> Executor:
    return ReferenceExecutor(TINY, tiny_weights(), num_blocks=num_blocks, block_size=16)


def tiny_core(
    executor: Executor,
    kv: KVCacheManager | None = None,
    *,
    max_num_seqs: int = 16,
    max_num_queued_reqs: int | None = None,
    tokenizer: AlphabetTokenizer | Tokenizer | None = None,
    grammars: GrammarPool | None = None,
) -> EngineCore:
    tokenizer = tokenizer or AlphabetTokenizer()
    door = Door(
        max_model_len=MAX_MODEL_LEN,
        vocab_size=TINY.vocab_size,
        max_num_queued_reqs=max_num_queued_reqs,
    )
    return EngineCore(
        scheduler=Scheduler(
            kv=kv or KVCacheManager(num_blocks=NUM_BLOCKS, block_size=16),
            policy=FCFSPolicy(),
            door=door,
            max_num_batched_tokens=64,
            max_num_seqs=max_num_seqs,
        ),
        executor=executor,
        outputs=OutputProcessor(tokenizer),
        clock=MonotonicClock(),
        eos_token_ids=tokenizer.eos_token_ids,
        grammars=grammars,
        seeds=random.Random(0),
        debug_invariants=True,
    )
