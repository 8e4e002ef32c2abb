"""The real engine over a random model of microseconds, whose tokens are characters."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence

from headway.clock import MonotonicClock
from headway.core.acceptance import Door
from headway.core.kv_cache import KVCacheManager
from headway.core.plan import StepPlan, StepResult
from headway.core.policy import FCFSPolicy
from headway.core.scheduler import Scheduler
from headway.engine.async_engine import AsyncEngine, RequestStream
from headway.engine.core import EngineCore
from headway.engine.exactness import Exactness
from headway.engine.outputs import NewRequest, OutputProcessor
from headway.metrics import Observer, RequestRecord, StepRecord
from headway.runtime.reference import ReferenceExecutor
from headway.server.generation import ServedModel
from server.serving import CREATED, MODEL, TIMEOUT_S
from tiny import TINY, tiny_weights

__all__ = ["ALPHABET", "TinyEngine"]

ALPHABET = "".join(map(chr, range(ord("A"), ord("A") + TINY.vocab_size)))


class AlphabetTokenizer:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ALPHABET.index(character) for character in text]

    def token_bytes(self, token_id: int) -> bytes:
        return ALPHABET[token_id].encode()

    def token_text(self, token_id: int) -> str:
        return ALPHABET[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


class GatedExecutor:
    """Holds every step while the gate is closed, and fails those that have `poison` in them."""

    def __init__(self, inner: ReferenceExecutor, gate: threading.Event) -> None:
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


class TellingEngine(AsyncEngine):
    """Puts what it accepts into a queue; `observer` sees all after every other observer."""

    def __init__(self, core: EngineCore, observer: Observer) -> None:
        super().__init__(core)
        self.added: queue.Queue[NewRequest] = queue.Queue()
        self._observer = observer

    def start(self) -> None:
        self.add_observer(self._observer)
        super().start()

    async def add(self, requests: Sequence[NewRequest]) -> list[RequestStream]:
        streams = await super().add(requests)
        for request in requests:
            self.added.put(request)
        return streams


class TinyEngine:
    """An `AsyncEngine` with what a test wants to see of it and to do to it."""

    def __init__(self, *, num_blocks: int = 64, max_num_queued_reqs: int | None = None) -> None:
        self.ended: queue.Queue[RequestRecord] = queue.Queue()
        self.batch_sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        weights = tiny_weights()
        self.executor = GatedExecutor(
            ReferenceExecutor(TINY, weights, num_blocks=num_blocks, block_size=16), self.gate
        )
        self.kv = KVCacheManager(num_blocks=num_blocks, block_size=16)
        tokenizer = AlphabetTokenizer()
        door = Door(
            max_model_len=128,
            vocab_size=TINY.vocab_size,
            max_num_queued_reqs=max_num_queued_reqs,
        )
        core = EngineCore(
            scheduler=Scheduler(
                kv=self.kv,
                policy=FCFSPolicy(),
                door=door,
                max_num_batched_tokens=64,
                max_num_seqs=16,
            ),
            executor=self.executor,
            outputs=OutputProcessor(tokenizer),
            clock=MonotonicClock(),
            eos_token_ids=(),
            seeds=random.Random(0),
            debug_invariants=True,
        )
        self.engine = TellingEngine(
            core,
            self._observe,
        )
        self.model = ServedModel(
            names=(MODEL,),
            created=CREATED,
            tokenizer=tokenizer,
            chat_template=None,
            sampling_defaults={},
            max_model_len=128,
            exactness=Exactness(False, "not probed"),
        )

    def wait_for(self, num_requests: int) -> None:
        """Returns once that many more have been accepted."""
        for _ in range(num_requests):
            self.engine.added.get(timeout=TIMEOUT_S)

    def hold(self) -> None:
        """Closes the gate, to be opened with `gate.set()`; forgets what was before."""
        self.gate.clear()
        self.executor.entered.clear()
        self.batch_sizes.clear()
        self.engine.added.queue.clear()

    def _observe(self, step: StepRecord | None, ended: Sequence[RequestRecord]) -> None:
        if step is not None:
            self.batch_sizes.append(len(step.batch))
        for record in ended:
            self.ended.put(record)
