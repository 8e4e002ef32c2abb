"""A report as one HTML file that needs nothing else: text, tables, plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["Page"]


class Page:
    """Filled from top to bottom; what is given is text, never HTML.

    Args:
        title: heads the page.
    """

    def __init__(self, title: str) -> None:
        raise NotImplementedError

    def heading(self, text: str) -> None:
        raise NotImplementedError

    def text(self, *paragraphs: str) -> None:
        raise NotImplementedError

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Cells that are numbers are set to the right."""
        raise NotImplementedError

    def plot(self, svg: str, caption: str) -> None:
        """`svg` from `bench.plots`."""
        raise NotImplementedError

    def write(self, path: Path) -> None:
        """Raises InvalidConfig (`output`) where that fails."""
        raise NotImplementedError
