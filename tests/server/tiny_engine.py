"""The real engine over a random model of microseconds, for the server in one process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from headway.core.kv_cache import KVCacheManager
from headway.engine.async_engine import AsyncEngine, RequestStream
from headway.engine.core import EngineCore
from headway.engine.exactness import Exactness
from headway.engine.outputs import NewRequest
from headway.grammar.pool import GrammarPool
from headway.metrics import Observer, RequestRecord, StepRecord
from headway.server.generation import ServedModel
from headway.text.tokenizer import Tokenizer
from server.serving import CREATED, MODEL, TIMEOUT_S
from server.tiny_core import (
    ALPHABET,
    MAX_MODEL_LEN,
    NUM_BLOCKS,
    AlphabetTokenizer,
    GatedExecutor,
    tiny_core,
    tiny_executor,
)

__all__ = ["ALPHABET", "AlphabetTokenizer", "TinyEngine"]


class TellingEngine(AsyncEngine):
    """Puts what it accepts into a queue, and what is aborted into another; `observer` sees all
    after every other observer."""

    def __init__(self, core: EngineCore, observer: Observer) -> None:
        super().__init__(core)
        self.added: queue.Queue[NewRequest] = queue.Queue()
        self.aborted: queue.Queue[str] = queue.Queue()
        self._observer = observer

    def start(self) -> None:
        self.add_observer(self._observer)
        super().start()

    async def add(self, requests: Sequence[NewRequest]) -> list[RequestStream]:
        streams = await super().add(requests)
        for request in requests:
            self.added.put(request)
        return streams

    def _abort(self, request_id: str) -> None:
        super()._abort(request_id)
        self.aborted.put(request_id)


class TinyEngine:
    """An `AsyncEngine` with what a test wants to see of it and to do to it."""

    def __init__(
        self,
        *,
        num_blocks: int = NUM_BLOCKS,
        max_num_queued_reqs: int | None = None,
        tokenizer: AlphabetTokenizer | Tokenizer | None = None,
        grammars: GrammarPool | None = None,
    ) -> None:
        tokenizer = tokenizer or AlphabetTokenizer()
        self.ended: queue.Queue[RequestRecord] = queue.Queue()
        self.batch_sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.executor = GatedExecutor(tiny_executor(num_blocks), self.gate)
        self.kv = KVCacheManager(num_blocks=num_blocks, block_size=16)
        core = tiny_core(
            self.executor,
            self.kv,
            max_num_queued_reqs=max_num_queued_reqs,
            tokenizer=tokenizer,
            grammars=grammars,
        )
        self.engine = TellingEngine(core, self._observe)
        self.model = ServedModel(
            names=(MODEL,),
            created=CREATED,
            tokenizer=tokenizer,
            chat_template=None,
            sampling_defaults={},
            max_model_len=MAX_MODEL_LEN,
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
