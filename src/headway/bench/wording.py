"""Figures as reports show them."""

from __future__ import annotations

__all__ = ["number", "percent"]


def number(value: float | None) -> str:
    """To three digits, or whole from 100 on."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def percent(ratio: float | None) -> str:
    """What a ratio changes."""
    return "–" if ratio is None else f"{(ratio - 1) * 100:+.1f} %".replace("-", "−")
