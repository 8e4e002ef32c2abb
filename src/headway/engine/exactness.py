"""What an engine promises of its answers, whatever else it serves."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Exactness"]


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether tokens and logits of a request are, bit for bit, those that it gets alone: whatever
    else is in the batch, however its prompt is cut, wherever its blocks lie, and whether it was
    preempted or found a prefix in the cache."""

    promised: bool
    note: str
    """How that was found, or why it is not promised."""

    def __str__(self) -> str:
        return f"{'promised' if self.promised else 'no promise'}: {self.note}"
