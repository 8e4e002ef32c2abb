"""How long a step should take, from those before it: what tells a slow step from a hung one."""

from __future__ import annotations

from collections import deque

from headway.metrics import RequestRecord, StepRecord

__all__ = ["StepEstimate"]

_RECENT = 8
"""Steps of a size that are remembered; the longest of them counts."""
_UNMEASURED_TOKEN_S = 0.05
"""Per token, while nothing was measured: some twentieth of the pace of the slowest machine that
anybody waits for."""


class StepEstimate:
    """An observer that tells how long a step of so many tokens takes, at most and about.

    A larger step takes no less, and per token no more: so a measured step that is larger says it,
    and so does a smaller one, scaled up. Read in any thread.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        """Seconds, by the number of tokens rounded up to a power of two."""

    def __call__(
        self,
        step: StepRecord | None,
        ended: tuple[RequestRecord, ...],  # noqa: ARG002
    ) -> None:
        if step is not None and step.num_tokens and not step.failed:
            size = _size(step.num_tokens)
            self._recent.setdefault(size, deque(maxlen=_RECENT)).append(step.duration_s)

    def seconds(self, num_tokens: int) -> float:
        """For a step of so many tokens."""
        wanted = _size(num_tokens)
        return min(
            (
                max(tuple(durations)) * max(1.0, wanted / size)
                for size, durations in tuple(self._recent.items())
            ),
            default=num_tokens * _UNMEASURED_TOKEN_S,
        )


def _size(num_tokens: int) -> int:
    return 1 << max(0, num_tokens - 1).bit_length()
