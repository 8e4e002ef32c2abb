"""The first step at which two recordings differ, or a recording and its replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from os import PathLike
from typing import NamedTuple, TextIO

from headway.errors import InvalidConfig
from headway.record.lines import Added, Applied, Line, Planned, Recording, Refused, Taken
from headway.record.replay import replay

__all__ = ["Difference", "Step", "first_difference", "run_replay", "steps"]

_FIGURES = (
    "num_running",
    "waiting",
    "preemptions",
    "recomputed_tokens",
    "discarded_tokens",
    "num_accepted_tokens",
    "failed",
    "blocks_used",
    "blocks_cached",
    "blocks_free",
    "evictions",
)


class Step(NamedTuple):
    """A step that was run, or that preempted: what was planned and what it came to."""

    planned: Planned
    taken: Taken
    refused: tuple[Refused, ...]
    """Since the step before."""


class Difference(NamedTuple):
    """Where two runs part."""

    num_equal: int
    """Steps before it, all equal."""
    step: int | None
    """Number of the first step that differs; None where one of the two has no more steps."""
    time_s: float
    details: tuple[str, ...]
    """One a line: what it is, the first side | the second."""


def steps(lines: Iterable[Line], names: dict[int, str] | None = None) -> Iterator[Step]:
    """The steps of a recording in the order of their plans; puts the ids of requests, by number,
    into `names`."""
    planned: dict[int, Planned] = {}
    refused: list[Refused] = []
    for line in lines:
        match line:
            case Added() if names is not None:
                names.update((item.number, item.request_id) for item in line.requests)
            case Refused():
                refused.append(line)
            case Planned():
                planned[line.step] = line
            case Applied():
                for taken in line.records:
                    yield Step(planned.pop(taken.step), taken, tuple(refused))
                    refused.clear()
                # Plans that were not run are told of now or never.
                planned = {number: plan for number, plan in planned.items() if plan.to_run}


def first_difference(
    first: Iterable[Step], second: Iterable[Step], names: Mapping[int, str]
) -> tuple[int, Difference | None]:
    """How many steps were compared, and where the two differ. Times and costs are not compared.

    `names`: requests by number, as the iterators fill it.
    """
    count = 0
    for a, b in zip_longest(first, second):
        step: int | None = None
        if a is not None and b is not None:
            details = tuple(_differences(a, b, lambda number: _name(number, names)))
            step = a.planned.step
        else:
            details = ("only the second goes on" if a is None else "only the first goes on",)
        if details:
            time_s = (a or b).planned.time_s
            return count, Difference(count, step, time_s, details)
        count += 1
    return count, None


def _differences(a: Step, b: Step, name: Callable[[int], str]) -> Iterator[str]:
    for number, refused in _both(_refused(a), _refused(b)):
        yield f"{name(number)}: {refused[0] or 'accepted'} | {refused[1] or 'accepted'}"
    if a.planned.step != b.planned.step:
        yield f"number: {a.planned.step} | {b.planned.step}"
    for number, given in _both(_given(a.planned), _given(b.planned)):
        yield f"{name(number)}: {given[0] or 'no tokens'} | {given[1] or 'no tokens'}"
    for number, admitted in _both(_admitted(a.taken), _admitted(b.taken)):
        yield f"{name(number)}: {admitted[0] or 'not admitted'} | {admitted[1] or 'not admitted'}"
    orders = [[chunk[0] for chunk in step.planned.chunks] for step in (a, b)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        yield f"order of the batch: {orders[0]} | {orders[1]}"
    for field in ("zero_blocks", "copies_out", "copies_in"):
        one, other = getattr(a.planned, field), getattr(b.planned, field)
        if one != other:
            yield f"{field}: {one} | {other}"
    for field in _FIGURES:
        one, other = getattr(a.taken, field), getattr(b.taken, field)
        if one != other:
            yield f"{field}: {one} | {other}"


def _both(a: Mapping[int, str], b: Mapping[int, str]) -> Iterator[tuple[int, tuple[str, str]]]:
    """What differs, by request; empty text where one side has nothing."""
    for number in {**a, **b}:
        pair = (a.get(number, ""), b.get(number, ""))
        if pair[0] != pair[1]:
            yield number, pair


def _refused(step: Step) -> dict[int, str]:
    return {number: line.error for line in step.refused for number in line.numbers}


def _given(planned: Planned) -> dict[int, str]:
    given = {number: f"{count} tokens from {start}" for number, start, count in planned.chunks}
    for number, count in planned.drafts.items():
        given[number] += f", {count} of them drafts"
    return given


def _admitted(taken: Taken) -> dict[int, str]:
    return {
        number: f"admitted ({kind}), {hit} of {lookup} tokens hit"
        for number, kind, lookup, hit in taken.admissions
    }


def _name(number: int, names: Mapping[int, str]) -> str:
    return f"request {number} ({names[number]})" if number in names else f"request {number}"


def run_replay(
    files: Sequence[str | PathLike[str]],
    *,
    settings: Sequence[str] = (),
    diff: bool = False,
    partial: bool = False,
    out: TextIO,
) -> int:
    """`headway replay`: compares a recording with its replay, or two recordings; 0 where they
    are the same, 1 where they differ.

    Args:
        files: one recording; with `diff` two.
        settings: `name=value`, each an option that the replay is to run with.
        diff: compare the two recordings, and run nothing.
        partial: take a recording that was cut as far as it goes.
        out: where the answer is written.

    Raises InvalidRecording for a file that is none, InvalidConfig for a wrong option.
    """
    if len(files) != (2 if diff else 1):
        raise InvalidConfig("diff" if diff else "replay", f"takes {2 if diff else 1} recordings")
    recordings = [Recording(file, cut_ok=partial) for file in files]
    overrides: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or diff:
            raise InvalidConfig(setting, "must be name=value, and goes not with --diff")
        overrides[name] = value
    other = recordings[1] if diff else replay(recordings[0], overrides)
    names: dict[int, str] = {}
    count, difference = first_difference(steps(recordings[0], names), steps(other), names)
    if difference is None:
        out.write(f"identical, {count} steps\n")
        return 0
    where = "the end" if difference.step is None else f"step {difference.step}"
    sides = f"{files[0]} | {files[1] if diff else ' '.join(('replayed', *settings))}"
    out.write(f"{count} steps are the same; {where}, at {difference.time_s:g} s, is not:\n")
    out.write(f"  {sides}\n")
    out.writelines(f"  {line}\n" for line in difference.details)
    return 1
