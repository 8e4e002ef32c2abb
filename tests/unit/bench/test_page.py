"""Pages of a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.bench.page import Page
from headway.errors import InvalidConfig

EVIL = "<script>alert('x')</script> & \"more\""


def test_what_is_given_is_text_and_never_html() -> None:
    page = Page(EVIL)
    page.heading(EVIL)
    page.text(EVIL)
    page.table([EVIL], [[EVIL]])
    page.plot("<svg></svg>", EVIL)
    html = page.html()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 7  # the title twice
    assert "<svg></svg>" in html


def test_it_needs_nothing_else_and_has_a_dark_form() -> None:
    page = Page("t")
    page.text("words")
    html = page.html()
    assert not re.search(r"(src|href)=|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html


def test_numbers_are_set_to_the_right_and_so_is_their_head() -> None:
    page = Page("t")
    page.table(["name", "value"], [["a", "1,234.5"], ["b", "−3.1 %"], ["c", "–"]])
    html = page.html()
    assert html.count('<td class="number">') == 3
    assert '<th>name</th><th class="number">value</th>' in html


def test_a_page_that_cannot_be_written_names_its_path(tmp_path: Path) -> None:
    Page("t").write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(InvalidConfig, match=r"output: .*nowhere/page.html"):
        Page("t").write(tmp_path / "nowhere" / "page.html")
