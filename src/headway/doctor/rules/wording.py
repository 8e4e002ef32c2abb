"""Figures in a sentence, and what an option is called where it is to be changed."""

from __future__ import annotations

from headway.doctor.readings import Window

__all__ = ["amount", "more_kv", "percent", "seconds"]


def percent(share: float) -> str:
    """`41 %`; small ones with a digit."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def seconds(value: float) -> str:
    """`1.2 s`, `35 ms`."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def amount(value: float) -> str:
    """`1,204`, `3.5`: a mean, or a count."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def more_kv(window: Window) -> str:
    """How the KV cache gets room for more."""
    if window.series.flavour == "vllm":
        return "more KV memory (--gpu-memory-utilization), or smaller KV (--kv-cache-dtype fp8)"
    return "more KV memory (--kv-cache-memory), or smaller KV (--kv-cache-dtype int8)"
