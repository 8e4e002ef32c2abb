"""A request of a load, and the order in which requests of several sources come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from headway.workload.texts import Text

__all__ = ["WorkItem", "in_order"]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request."""

    class_name: str
    arrival_s: float
    """From the start; in a closed loop, and of a turn that follows another, the earliest moment:
    as if nothing took the server any time."""
    prompt: tuple[Text, ...]
    """A later turn's ends with a made-up answer and what the turn adds."""
    output_len: int
    """Most tokens of the answer."""
    follows: int | None = None
    """Of a conversation's later turns: the one before, by its place in the list of items. It is
    followed by no other."""
    pause_s: float = 0.0
    """From the end of that one's answer to this request."""
    own_from: int = 0
    """Where in the prompt begins what this turn adds; before it is the conversation so far, with
    made-up answers. 0 where it follows none."""

    @property
    def input_len(self) -> int:
        """Tokens of the prompt."""
        return sum(text.len for text in self.prompt)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt, a whole request by itself. Drawn each time: keep it if it is used twice."""
        return tuple(chain.from_iterable(text.token_ids for text in self.prompt))

    @property
    def own_ids(self) -> tuple[int, ...]:
        """From `own_from` on: all of the prompt, or what a later turn adds."""
        return self.token_ids if self.follows is None else tuple(self.prompt[-1].token_ids)

    @property
    def made_up_answer_ids(self) -> tuple[int, ...]:
        """Of a later turn: what stands in its prompt for the answer that it follows."""
        assert self.follows is not None
        return tuple(self.prompt[-2].token_ids)


def in_order(sources: Iterable[Sequence[WorkItem]]) -> list[WorkItem]:
    """By arrival. `follows` are places in their own source before, in the whole list after."""
    items: list[WorkItem] = []
    follows: list[int | None] = []
    for source in sources:
        begin = len(items)
        items += source
        follows += [None if item.follows is None else begin + item.follows for item in source]
    order = sorted(range(len(items)), key=lambda index: items[index].arrival_s)
    place = {old: new for new, old in enumerate(order)}
    return [
        items[old]
        if (before := follows[old]) is None
        else replace(items[old], follows=place[before])
        for old in order
    ]
