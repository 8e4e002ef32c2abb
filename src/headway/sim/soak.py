"""The scheduler under random work for as long as one likes (`headway soak`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from random import Random

from headway.clock import Clock, MonotonicClock
from headway.sim.situations import random_arrival, random_setup
from headway.sim.trial import Trial

__all__ = ["act", "run_soak", "run_trial"]

_MOST_ACTIONS = 80
_REPEAT_EVERY = 16
"""One trial in that many is run twice, and must make the same plans."""


def act(trial: Trial, random: Random) -> None:
    """Does one thing to the trial, whichever it may be."""
    what = random.choice("aappccsssxw")
    if what == "a":
        for _ in range(random.randint(1, 5)):
            chats = [case.prompt + case.output for case in trial.ledger.cases.values()][-4:]
            trial.add(random_arrival(random, trial.setup, chats))
    elif what == "p" and len(trial.in_flight) < trial.setup.depth:
        trial.plan(fails=_strikes(trial, random))
    elif what == "c" and trial.in_flight:
        trial.collect(nan=_strikes(trial, random))
    elif what == "s":
        steps = random.randint(1, 25)
        while steps and trial.has_work:
            trial.step(fails=_strikes(trial, random), nan=_strikes(trial, random))
            steps -= 1
    elif what == "x" and (live := trial.live):
        trial.abort(random.choice(live))
    elif what == "w":
        trial.wait(random.choice([0.5, 5.0, 40.0]))


def _strikes(trial: Trial, random: Random) -> bool:
    """Whether a fault does."""
    return trial.setup.fault_rate > 0 and random.random() < trial.setup.fault_rate


def run_trial(seed: int, *, keep_plans: bool = False) -> Trial:
    """One configuration from its first request to its last; raises where an invariant fails."""
    random = Random(seed)
    trial = Trial(random_setup(random), keep_plans=keep_plans)
    for _ in range(random.randint(10, _MOST_ACTIONS)):
        act(trial, random)
    trial.finish()
    return trial


def run_soak(
    num_steps: int,
    seed: int,
    *,
    max_seconds: float | None = None,
    clock: Clock | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Runs trials of seed, seed + 1, … until so many steps were planned; prints how it went.

    Args:
        num_steps: steps at least; the last trial is not cut short.
        seed: of the first trial. Every trial is a fresh configuration.
        max_seconds: stop after that long by `clock`; None: however long it takes.
        clock: to measure with; None: the monotonic one.
        say: takes a line of output.

    Returns:
        The exit status: 1 where a trial failed, else 0.
    """
    clock = clock or MonotonicClock()
    begin_s, done, trials = clock.now(), 0, 0
    while done < num_steps and (max_seconds is None or clock.now() - begin_s < max_seconds):
        repeat = trials % _REPEAT_EVERY == 0
        try:
            trial = run_trial(seed + trials, keep_plans=repeat)
            if repeat:
                again = run_trial(seed + trials, keep_plans=True)
                assert trial.plans == again.plans, "I16: the same calls gave other plans"
        except Exception as error:
            for line in _report(error, seed + trials):
                say(line)
            return 1
        done += trial.num_steps
        trials += 1
    seconds = clock.now() - begin_s
    say(f"{done:,} steps in {trials:,} trials, all well ({done / max(seconds, 1e-9):,.0f} steps/s)")
    return 0


def _report(error: Exception, seed: int) -> list[str]:
    """What went wrong, where, and how to see it again."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return [
        *traceback.format_exception(error),
        f"configuration: {random_setup(Random(seed))}",
        f"trial {seed} failed: {type(error).__name__}: {error} ({where.name}: {where.line})",
        f"again: headway soak --steps 1 --seed {seed}",
    ]
