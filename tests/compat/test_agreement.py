"""What `headway bench serve` measures is what guidellm measures."""

from __future__ import annotations

from pathlib import Path

from compat.agreement import FIGURES, RUNS, difference, interleaved, medians, simulated, table


def test_medians_agree_with_guidellm_within_2_percent_or_2_ms(tmp_path: Path) -> None:
    """Of five runs each, in turns."""
    with simulated(tmp_path) as load:
        ours, theirs = interleaved(load, tmp_path, RUNS, "guidellm")
    print(table(ours, theirs, "guidellm"))
    for name in FIGURES:
        share, absolute = difference(medians(ours), medians(theirs), name)
        close = abs(share) <= 0.02 or (name.endswith(" ms") and abs(absolute) <= 2)
        assert close, table(ours, theirs, "guidellm")
