"""Pages of a report."""

from __future__ import annotations

import re

from headway.bench.page import Page

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


def test_code_stands_in_backticks() -> None:
    page = Page("t")
    page.text("under `fair` & `a<b`, a ` alone")
    assert "<p>under <code>fair</code> &amp; <code>a&lt;b</code>, a ` alone</p>" in page.html()


def test_it_needs_nothing_else_and_has_a_dark_form() -> None:
    page = Page("t")
    page.text("words")
    html = page.html()
    assert not re.search(r"(src|href)=|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html


def test_numbers_are_set_to_the_right_and_so_is_their_head() -> None:
    values = ("1,234.5", "−3.1 %", "–", "12 (11–13)", "0.5 (1e-05–1,200)", "2 of 3", "−1 % … +2 %")
    rows = [["x", each] for each in values]
    page = Page("t")
    page.table(["name", "value"], rows)
    html = page.html()
    assert html.count('<td class="number">') == len(rows)
    assert '<th>name</th><th class="number">value</th>' in html
