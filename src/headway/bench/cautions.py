"""What a reader must know of trials before he believes their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headway.bench.readings import by_variant
from headway.bench.report import is_late
from headway.bench.trials import Trial

__all__ = ["cautions", "failures", "failures_beside", "is_saturated", "saturated_rounds"]


def cautions(trials: Sequence[Trial]) -> list[str]:
    """Sentences: first which variants were given more than they can do, then by variant what
    failed, and what of the load was not as it was asked for."""
    variants = by_variant(trials)
    too_much = [
        f"{name} (in {saturated_rounds(own)} rounds)"
        for name, own in variants.items()
        if is_saturated(own)
    ]
    found = []
    if too_much:
        found.append(
            f"The load saturated the server: {'; '.join(too_much)}. Figures of such rounds "
            "describe a queue that grows, or the few that were let in: a longer run would give "
            "others."
        )
    return found + [f"{name}: {each}." for name, own in variants.items() for each in _of_one(own)]


def saturated_rounds(trials: Sequence[Trial]) -> str:
    """Of one variant's, as `2 of 3`; – where no round tells, as in a closed loop."""
    told = [trial.result.get("saturated") for trial in trials]
    return "–" if all(each is None for each in told) else f"{told.count(True)} of {len(told)}"


def is_saturated(trials: Sequence[Trial]) -> bool:
    """Whether one variant's server was, in any round."""
    return any(trial.result.get("saturated") for trial in trials)


def failures(trials: Sequence[Trial]) -> str | None:
    """Of one variant's requests; None: none failed."""
    failed, count = _failed(trials)
    return f"{failed} of {count} requests failed" if failed else None


def failures_beside(trials: Sequence[Trial], variant: str, baseline: str) -> str | None:
    """A sentence where not as many requests of the variant failed as of the baseline: then their
    latencies are not of the same requests."""
    variants = by_variant(trials)
    (failed, count), (before, of) = _failed(variants[variant]), _failed(variants[baseline])
    if failed == before:
        return None
    return (
        f"{failed} of {count} requests failed ({baseline}: {before} of {of}): latencies are of "
        "the others."
    )


def _failed(trials: Sequence[Trial]) -> tuple[int, int]:
    """How many, and of how many."""
    failed = sum(_total(trials, "failed"))
    return failed, failed + sum(_total(trials, "completed"))


def _of_one(trials: Sequence[Trial]) -> list[str]:
    found = []
    if said := failures(trials):
        errors: Counter[str] = Counter()
        for trial in trials:
            errors.update(trial.result.get("error_counts", {}))
        reason = "".join(f", most with: {error}" for error, _ in errors.most_common(1))
        found.append(said + reason)
    late = [trial.result["p99_lateness_ms"] for trial in trials if is_late(trial.result)]
    if late:
        found.append(
            f"the client was late in {len(late)} of {len(trials)} rounds (one request in a "
            f"hundred by {max(late):.0f} ms or more), so the load was not quite what was asked for"
        )
    return found + [
        f"{text}: {count}" for key, text in _COUNTED if (count := sum(_total(trials, key)))
    ]


_COUNTED = (
    ("short_outputs", "answers that were shorter than asked for"),
    ("wrong_input_lens", "prompts that were not of the length asked for, as the server counts"),
    ("made_up_answers", "prompts that hold made-up answers where the server's own should stand"),
)


def _total(trials: Sequence[Trial], key: str) -> list[int]:
    return [int(trial.result.get(key) or 0) for trial in trials]
