"""Random chat templates: bounded ones say what plain Jinja2 says, and no source does harm."""

from __future__ import annotations

import random
import re
import time
from typing import Any

from hypothesis import assume, event, given, note
from hypothesis import strategies as st

from headway.errors import InvalidRequest, ModelError
from headway.text.chat_template import ChatTemplate
from property.hostile import tries
from unit.text.conversations import CONVERSATIONS, NOW, TEMPLATES, TOOLS, plain_jinja

VARIABLES: dict[str, Any] = {
    "tools": TOOLS,
    "s": "Some text, é 🙂 <b>\n",
    "n": 3,
    "l": [1, "b", None, "B", 2.5],
    "w": ["one", "Two", "three", "two"],
    "d": {"a": 1, "b": ["x"], "items": "y"},
}


ATOMS = {
    "t": ["s", "'a'", "''", "messages[0].content", "messages[-1]['role']", "w[1]", "'x,y'"],
    "i": ["n", "0", "1", "-2", "messages | length", "7"],
    "w": ["w", "l", "messages", "tools", "d"],
    "v": ["l", "w", "d", "messages", "tools[0]", "none", "missing", "true", "1.5", "loop.index"],
}
"""Texts, integers, collections, and whatever there is."""
EXPRESSIONS = (
    "($t + $t)",
    "($v ~ $i ~ $t)",
    "($t * $i)",
    "($i + $i)",
    "($i - $i)",
    "($i * $i)",
    "($i // $i)",
    "($i / $i)",
    "($i % 2)",
    "($i ** $i)",
    "(-$i)",
    "($v == $v)",
    "($t != $t)",
    "($i < $i)",
    "(1 <= $i < $i)",
    "($t in $t)",
    "($v not in $w)",
    "(not $v)",
    "($v and $v)",
    "($v or $v)",
    "($v if $v else $v)",
    "($v if $v)",
    "$w[$i]",
    "$t[$i:]",
    "$w[:$i]",
    "$t[$i:$i:-1]",
    "$w[::-1]",
    "$v.a",
    "d['items']",
    "d[$t]",
    "[$v, $v]",
    "($v,)",
    "{'k': $v, $t: 1}",
    "$t.strip()",
    "$t.split($t)",
    "$t.split()",
    "$t.rsplit(',', $i)",
    "$t.splitlines()",
    "$t.replace('a', $t)",
    "$t.replace($t, 'b', $i)",
    "$t.startswith($t)",
    "$t.endswith(('a', 't'))",
    "$t.lstrip($t)",
    "$t.upper().title()",
    "$t.find('e')",
    "$t.removeprefix('S')",
    "', '.join($w)",
    "'{} {:>4} {!r}'.format($v, $i, $t)",
    "d.get($t, $v)",
    "(d.items() | list)",
    "(d.keys() | list)",
    "($t | trim)",
    "($t | upper | lower | capitalize)",
    "($t | title)",
    "($v | tojson)",
    "($v | tojson(indent=2, sort_keys=true))",
    "($v | string)",
    "($v | default($v, true))",
    "($w | length)",
    "($w | first)",
    "($w | last)",
    "($w | list)",
    "($w | reverse | list)",
    "($w | join('-'))",
    "(messages | join(', ', attribute='role'))",
    "($w | map('upper') | list)",
    "(messages | map(attribute='content') | list)",
    "(messages | selectattr('role', 'equalto', 'user') | list)",
    "(messages | rejectattr('tool_calls', 'defined') | list)",
    "($w | select('string') | list)",
    "($w | reject('in', w) | list)",
    "($w | sort)",
    "(messages | sort(attribute='role', reverse=true))",
    "(w | unique | list)",
    "(d | dictsort)",
    "(d | items | list)",
    "([$i, $i] | max)",
    "([$i, $i] | sum)",
    "($t | replace('e', $t))",
    "($t | indent($i, true))",
    "($t | int)",
    "($v | float(1.5))",
    "($v is defined)",
    "($v is string)",
    "($v is mapping or $v is iterable)",
    "($v is none or $v is sequence)",
    "($i is odd)",
    "($v is eq $v)",
    "($v is in $w)",
    "range($i)",
    "namespace(a=$v).a",
    "strftime_now('%Y')",
)
STATEMENTS = (
    "{{ $v }}",
    "{{ $t }}$c",
    "$c text\n$c",
    "{% if $v %}$c{% elif $v %}$c{% else %}$c{% endif %}",
    "{% for m in messages %}{{ m.role }}$c{% endfor %}",
    "{% for x in $w %}{{ loop.last }}$c{% if x %}{% break %}{% endif %}{% else %}none{% endfor %}",
    "{% for s in w if $v %}{{ s }}{{ loop.length }}$c{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}$c{% endfor %}",
    "{% set n = $i %}$c",
    "{% set s %}$c{% endset %}{{ s | length }}$c",
    "{% set ns = namespace(x=$v) %}{% for i in w %}{% set ns.x = [ns.x, i] %}{% endfor %}{{ ns.x }}",  # noqa: E501
    "{% macro f(a, b=$v) %}{{ a }}{{ b }}$c{% endmacro %}{{ f($v) }}{{ f(1, b=2) }}",
    "{% macro g(a) %}{{ caller(a) }}{% endmacro %}{% call(n) g($i) %}$c{% endcall %}",
    "{% filter upper %}$c{% endfilter %}",
    "{% with l = $w %}$c{% endwith %}",
    "{% generation %}$c{% endgeneration %}",
    "\n  {%- if true -%}\n $c {%+ endif %}\n\n",
)


class Author:
    """Writes templates; `pen` decides what."""

    def __init__(self, pen: random.Random) -> None:
        self._pen = pen

    def template(self, depth: int = 3) -> str:
        form = self._pen.choice(STATEMENTS if depth else STATEMENTS[:1])
        return re.sub(r"\$(\w)", lambda match: self._part(match[1], depth), form)

    def _part(self, kind: str, depth: int) -> str:
        if kind == "c":
            return self.template(depth - 1)
        return self._expression(kind, depth)

    def _expression(self, kind: str, depth: int) -> str:
        if self._pen.random() < (0.7, 0.5, 0.3, 0.2)[depth]:
            return self._pen.choice(ATOMS[kind])
        form = self._pen.choice(EXPRESSIONS)
        return re.sub(r"\$(\w)", lambda m: self._expression(m[1], max(depth - 1, 0)), form)


@given(seed=st.integers(0, 2**64 - 1))
@tries(300)
def test_what_plain_jinja_renders_is_rendered_alike(seed: int) -> None:
    pen = random.Random(seed)
    source = Author(pen).template()
    messages = pen.choice(list(CONVERSATIONS.values()))
    note(source)
    given = {**VARIABLES, "messages": messages, "add_generation_prompt": True}
    try:
        wanted = plain_jinja(source, {**given, "bos_token": "", "eos_token": ""})
    except Exception:
        event("Jinja2 fails, too")
        wanted = None
    assume(wanted is None or " object at 0x" not in wanted)
    try:
        template = ChatTemplate(source, bos_token=None, eos_token=None, now=lambda: NOW)
        result: str | None = template.render(messages, **VARIABLES)
    except (InvalidRequest, ModelError) as error:
        result = None
        reason = str(error)
    if result is None:
        assert len(reason) < 1100
        assert wanted is None or any(meant in reason for meant in MEANT), reason
    else:
        assert wanted is None or result == wanted


MEANT = (
    *("64 bits", "formats no text", "cannot be a key"),
    # Jinja2 cuts constants while it compiles, and forgives more there.
    *("not subscriptable", "slice indices must be integers"),
)
"""Reasons of what only bounded templates refuse."""

FRAGMENTS = st.sampled_from(
    [
        *(
            "{%",
            "%}",
            "{{",
            "}}",
            "{#",
            "#}",
            "-%}",
            "{%-",
            "'",
            '"',
            "\n",
            " ",
            "(",
            ")",
            "[",
            "]",
        ),
        *("{", "}", "|", ".", ",", ":", "=", "==", "~", "+", "*", "**", "%", "//", "<", "\\", "é"),
        *("if", "else", "elif", "endif", "for", "in", "endfor", "set", "endset", "macro", "call"),
        *("endmacro", "endcall", "filter", "raw", "endraw", "is", "not", "and", "recursive"),
        *("break", "block", "include", "import", "namespace", "range", "loop", "caller", "self"),
        *("messages", "content", "x", "10", "9999999999", "1.5", "none", "true", "join", "tojson"),
        *("trim", "map", "attr", "center", "__class__", "format", "split", "varargs", "kwargs"),
    ]
)


@given(
    source=st.lists(FRAGMENTS, max_size=40).map("".join)
    | st.lists(FRAGMENTS, max_size=40).map(" ".join)
    | st.text(max_size=200)
)
@tries(300)
def test_any_source_compiles_and_renders_or_is_refused(source: str) -> None:
    check_harmless(source)


@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), FRAGMENTS), max_size=4),
)
@tries(100)
def test_a_damaged_template_compiles_and_renders_or_is_refused(
    name: str, cuts: list[tuple[float, int, str]]
) -> None:
    source = TEMPLATES[name]
    for where, length, fragment in cuts:
        start = int(where * len(source))
        source = source[:start] + fragment + source[start + length :]
    check_harmless(source)


def check_harmless(source: str) -> None:
    start = time.process_time()
    try:
        ChatTemplate(source, bos_token=None, eos_token=None).render(CONVERSATIONS["tools"])
    except (ModelError, InvalidRequest) as error:
        reason = str(error)
    else:
        reason = ""
    assert len(reason) < 1100
    assert time.process_time() - start < 10
