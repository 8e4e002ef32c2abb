from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.params import SamplingParams
from headway.core.policy import PriorityPolicy
from headway.core.request import Request
from headway.core.waiting import WaitingQueue


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=40))
def test_the_queue_is_in_order_of_rank_whatever_comes_and_goes(
    arrivals: list[tuple[int, bool]],
) -> None:
    policy = PriorityPolicy()
    queue = WaitingQueue(policy.rank)
    kept: list[Request] = []
    for sequence, (priority, leaves) in enumerate(arrivals):
        request = Request(str(sequence), [1], SamplingParams(), arrival_s=0.0, priority=priority)
        request.sequence = sequence
        queue.add(request)
        kept.append(request)
        if leaves:
            gone = kept.pop(len(kept) // 2)
            queue.remove(gone)
        kept.sort(key=policy.rank)
        assert list(queue) == kept
        assert len(queue) == len(kept)
        if kept:
            assert queue.head is kept[0]
