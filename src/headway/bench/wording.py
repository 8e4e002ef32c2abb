"""Figures as reports show them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["loads_told", "number", "percent"]


def number(value: float | None) -> str:
    """To three digits, or whole from 100 on."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def percent(ratio: float | None) -> str:
    """What a ratio changes."""
    return "–" if ratio is None else f"{(ratio - 1) * 100:+.1f} %".replace("-", "−")


def loads_told(loads: Mapping[str, str]) -> list[str]:
    """A sentence for each load, from what describes it by variant; variants that have the same one
    are named together, and none is where all do."""
    variants: dict[str, list[str]] = {}
    for variant, load in loads.items():
        variants.setdefault(load, []).append(variant)
    if len(variants) == 1:
        return [f"The load: {load}" for load in variants]
    return [f"The load of {', '.join(names)}: {load}" for load, names in variants.items()]
