"""A long prompt among short ones, on the real executor; `docs/design/figures.md` has the figures.

python tests/sim/long_prompt.py      # a few minutes, and nothing else should run
"""

from __future__ import annotations

import statistics
import time

from headway import SamplingParams
from headway.config import EngineArgs
from headway.engine.outputs import NewRequest
from headway.llm import build_engine

LONG, SHORT, NUM_SHORT, EVERY_S = 6000, 40, 20, 1.0
PARAMS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SETTINGS: dict[str, dict[str, object]] = {
    "no chunked prefill, budget 8192": {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 8192,
    },
    "budget 2048": {"max_num_batched_tokens": 2048},
    "budget 2048, threshold 256": {
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 256,
    },
    "budget 256 (the default on CPU)": {},
}


def first_tokens(options: dict[str, object]) -> tuple[list[float], float]:
    """Seconds to the first token of each short request, and of the long one."""
    engine = build_engine(EngineArgs.of({"max_num_seqs": 32, **options}))
    vocab = engine.model.spec.vocab_size
    core, ttft, arrived = engine.core, dict[str, float](), dict[str, float]()
    due = [("long", 0.0)] + [(f"short-{i}", 0.1 + i * EVERY_S) for i in range(NUM_SHORT)]
    begin = time.perf_counter()
    while due or core.has_work:
        now = time.perf_counter() - begin
        while due and due[0][1] <= now:
            name, at = due.pop(0)
            length = LONG if name == "long" else SHORT
            start = len(arrived) * 31
            core.add([NewRequest(name, [(start + j * 7) % vocab for j in range(length)], PARAMS)])
            arrived[name] = at
        for delta in core.step() if core.has_work else ():
            if delta.token_ids:
                seconds = time.perf_counter() - begin - arrived[delta.request_id]
                ttft.setdefault(delta.request_id, seconds)
    long = ttft.pop("long")
    return list(ttft.values()), long


def main() -> None:
    print(f"{'seconds to the first token':36}{'short, mean':>12}{'worst':>8}{'long':>8}")
    for name, options in SETTINGS.items():
        short, long = first_tokens(options)
        print(f"{name:36}{statistics.mean(short):12.2f}{max(short):8.2f}{long:8.1f}", flush=True)


if __name__ == "__main__":
    main()
