"""Numbers and tables as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["count", "size", "table"]


def count(number: int) -> str:
    """`134.5M`, `1.2B`: parameters."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return str(number)


def size(num_bytes: int) -> str:
    """`98.4 MB`, in powers of ten as disks and networks have them."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes} B"


def table(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Lines with aligned columns; those in `left` are flush left, the others right. A row may
    end early: what its last cell then holds takes no part in the widths."""
    columns = max(map(len, rows))
    widths = [
        max((len(row[i]) for row in rows if i < len(row) - (len(row) < columns)), default=0)
        for i in range(columns)
    ]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in left or i == len(row) - 1 < columns - 1 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
