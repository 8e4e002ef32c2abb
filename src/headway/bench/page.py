"""A report as one HTML file that needs nothing else: text, tables, plots."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

__all__ = ["Page"]

_FIGURE = r"[-−+×]?\d[\d,.]*(e[-+]\d+)?"
_NUMBER = re.compile(
    rf"{_FIGURE}( ?(%|ms|s|tok/s|1/s|GiB))?( … {_FIGURE} ?%)?"
    rf"|{_FIGURE} \({_FIGURE}–{_FIGURE}\)|\d+ of \d+|–"
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --line: #d5d8dc; --soft: #f3f4f6 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e9; --paper: #17191c; --line: #3a3f45; --soft: #22262b }
}
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
p { max-width: 46rem; overflow-wrap: anywhere }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  max-width: 30rem; overflow-wrap: break-word; vertical-align: top }
th { background: var(--soft) } .number { text-align: right; white-space: nowrap }
figure { margin: 1rem 0 2rem } figcaption { font-size: .9rem }
svg { width: 100%; max-width: 48rem; height: auto; display: block }
"""


class Page:
    """Filled from top to bottom; what is given is text, never HTML, with code in backticks.

    Args:
        title: heads the page.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, *paragraphs: str) -> None:
        self._parts += [f"<p>{_marked(each)}</p>" for each in paragraphs]

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Cells that are numbers are set to the right."""
        numeric = [
            any(row[column] for row in rows)
            and all(_NUMBER.fullmatch(row[column]) or not row[column] for row in rows)
            for column in range(len(header))
        ]
        head = "".join(
            _cell("th", text, right=right) for text, right in zip(header, numeric, strict=True)
        )
        lines = [
            "".join(_cell("td", text, right=bool(_NUMBER.fullmatch(text))) for text in row)
            for row in rows
        ]
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        self._parts.append(
            f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table></div>"
        )

    def plot(self, svg: str, caption: str) -> None:
        """`svg` from `bench.plots`."""
        self._parts.append(f"<figure>\n{svg}\n<figcaption>{_marked(caption)}</figcaption></figure>")

    def html(self) -> str:
        """The whole page."""
        title, body = escape(self._title), "\n".join(self._parts)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )


def _cell(tag: str, text: str, *, right: bool) -> str:
    kind = ' class="number"' if right else ""
    return f"<{tag}{kind}>{_marked(text)}</{tag}>"


def _marked(text: str) -> str:
    """What stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
