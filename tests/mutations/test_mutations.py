"""The soak can fail: it finds every small fault planted in the core."""

from __future__ import annotations

from headway.sim.soak import run_trial
from mutations.planted import MUTATIONS
from mutations.run import find_all


def test_every_planted_fault_is_found_by_its_seed() -> None:
    assert len(MUTATIONS) >= 40
    missed = []
    for mutation, seed, what in find_all(MUTATIONS):
        print(f"{mutation.rule:4} {mutation.file:16} seed {seed}: {what}")
        if seed is None:
            missed.append((mutation, what))
    assert not missed, "run tests/mutations/run.py --search"


def test_the_same_seeds_find_nothing_where_nothing_is_planted() -> None:
    for seed in sorted({mutation.seed for mutation in MUTATIONS}):
        run_trial(seed)


def test_no_fault_is_listed_twice() -> None:
    assert len({(m.file, m.old, m.new) for m in MUTATIONS}) == len(MUTATIONS)
