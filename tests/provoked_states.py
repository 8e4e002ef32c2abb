"""States that simulated engines and real ones are driven into alike: whether one is in them hangs
on counts, not on how long a step takes."""

from __future__ import annotations

from collections.abc import Callable

from headway.workload import ClosedLoop, SharedPrefix, Workload
from provoked import State

__all__ = ["states_alike"]


def states_alike(
    asked: Callable[..., Workload], *, evicting_users: int, **args: object
) -> dict[str, State]:
    """By their names. "spread badly" is of the server of "healthy" too, which is the caller's.

    Args:
        asked: a workload of one class, by the fields of `TrafficClass`.
        evicting_users: who evict each other's blocks; of several, one stalls for another's prompt
            where steps are slow.
        args: of every engine.
    """
    return {
        "idle": State(args=args | {"num_kv_blocks": 64}),
        "spread badly": State(
            servers=("healthy", "idle"),
            must={"imbalance": "the router does not heed how busy the engines are"},
        ),
        "to spare": State(
            args=args | {"num_kv_blocks": 256},
            workload=asked(input_len=208, output_len=10, arrivals=ClosedLoop(1)),
        ),
        "preempting": State(
            args=args | {"num_kv_blocks": 24, "max_num_seqs": 32},
            workload=asked(input_len=4, output_len=(30, 90), arrivals=ClosedLoop(20)),
            begun=("num_preemptions", 1),
            must={"preemptions": "more is running than the KV cache can hold"},
            may=frozenset({"kv_pressure", "queue_time", "itl_stalls"}),
        ),
        "narrow": State(
            args=args | {"num_kv_blocks": 256, "max_num_seqs": 2},
            workload=asked(input_len=32, output_len=12, arrivals=ClosedLoop(12)),
            must={"running_at_limit": "--max-num-seqs is too low", "queue_time": "'width'"},
        ),
        "short of blocks": State(
            args=args | {"num_kv_blocks": 33, "block_size": 32},
            workload=asked(input_len=225, output_len=31, arrivals=ClosedLoop(16)),
            must={"kv_pressure": "the KV cache is too small"},
            may=frozenset({"queue_time", "itl_stalls"}),
        ),
        "evicting": State(
            args=args | {"num_kv_blocks": 180},
            workload=asked(
                input_len=144,
                output_len=8,
                arrivals=ClosedLoop(evicting_users),
                shared_prefix=SharedPrefix(128, count=80),
            ),
            begun=("kv_cache_evictions", 50),
            must={"evictions": "prefixes that come again may be gone by then"},
        ),
    }
