"""Templates from strangers: what they cannot do, and what they still can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.errors import InvalidRequest, ModelError
from headway.text.chat_template import ChatTemplate
from unit.text import template_bombs
from unit.text.conversations import NOW, plain_jinja
from unit.text.template_bombs import BOMBS

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, **variables: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=lambda: NOW)
    return template.render(messages, **variables)


@pytest.fixture(scope="module")
def endings() -> dict[str, tuple[str, float]]:
    """Of each bomb, in a process with little memory: what ended it, and CPU seconds."""
    path = Path(headway.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, template_bombs.__file__],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    endings: dict[str, tuple[str, float]] = json.loads(result.stdout)
    return endings


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory_or_time(
    name: str, endings: dict[str, tuple[str, float]]
) -> None:
    reason, seconds = endings[name]
    assert BOMBS[name][1] in reason
    assert not reason.startswith("memory")
    assert len(reason) < 1100
    assert seconds < 10  # the slowest take 0.6


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x" * (128 * 2**10 + 1), "more than 131072 characters"),
        ("{{ x }}" * 10_000, "more than 10000 parts"),
        ("{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}", "recursion"),
        ("{{ " + "[" * 30_000 + "]" * 30_000 + " }}", "recursion"),
        ("{{ " + "not " * 20_000 + "1 }}", "recursion"),
        ("{{ " + "1 + " * 9_000 + "1 }}", "deeper than 100"),
        ("{{ x" + ".y" * 9_000 + " }}", "deeper than 100"),
        ("{{ " + "1 < " * 20_000 + "1 }}", "more than 10000 parts"),
        ("{% if x %}" * 5000 + "{% endif %}" * 5000, "recursion"),
        ("{% if x %}" + "{% elif x %}" * 9_000 + "{% endif %}", "more than 10000 parts"),
        ("{% for a in x %}" * 30 + "{% endfor %}" * 30, "nested"),
        ("{{ " + "a" * 101 + " }}", "a name is longer than 100 characters"),
        ("{{ " + "1" * 10_000 + " }}", "4300 digits"),
        ("{% include 'other' %}", "line 1: Include is not supported"),
        ("{% extends 'other' %}", "line 1: Extends is not supported"),
        ("{% import 'other' as o %}", "line 1: Import is not supported"),
        ("{% from 'other' import o %}", "line 1: FromImport is not supported"),
        ("{% block b %}{% endblock %}", "line 1: Block is not supported"),
        ("{% autoescape true %}{% endautoescape %}", "EvalContextModifier is not supported"),
        ("\n{% for m in x recursive %}{% endfor %}", "line 2: a recursive loop is not supported"),
        ("{{ 1 < 2 in x }}", "'in' within a chain"),
        ("{{ namespace(**x) }}", "unpacked arguments"),
        ("{{ namespace(a=1, a=2) }}", "repeated"),
        ("{{ x | wordwrap }}", "line 1: No filter named 'wordwrap'"),
        ("{{ x is escaped }}", "line 1: No test named 'escaped'"),
        ("{% do x %}", "unknown tag 'do'"),
        ("\n\n{{ x", "line 3: unexpected end of template"),
    ],
)
def test_a_source_beyond_the_bounds_does_not_compile(source: str, reason: str) -> None:
    with pytest.raises(ModelError, match="the chat template does not compile: ") as caught:
        render(source)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 1100


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "[" * 40 + "]" * 40 + " }}",
        "{{ " + "1 + " * 90 + "1 }}",
        "{% if true %}" * 40 + "{{ 1 }}" + "{% endif %}" * 40,
        "{{ 1 }}" * 4900,
        "x" * (128 * 2**10),
        "{% for a in [1] %}" * 15 + "x" + "{% endfor %}" * 15,
    ],
)
def test_a_source_within_the_bounds_compiles(source: str) -> None:
    assert render(source) == plain_jinja(source, {})


def test_each_rendering_has_an_allowance_of_its_own() -> None:
    template = ChatTemplate("{{ 'x' * 10000000 }}", bos_token=None, eos_token=None)
    assert template.render(USER) == template.render(USER)


def test_the_same_amount_of_work_ends_it_every_time() -> None:
    source = "{% for i in range(n) %}{{ messages[0].content }}{% endfor %}"
    template = ChatTemplate(source, bos_token=None, eos_token=None)

    def renders(n: int) -> bool:
        try:
            return bool(template.render([{"role": "user", "content": "x" * 10_000}], n=n))
        except InvalidRequest:
            return False

    most = bisect_left(range(1, 9999), True, key=lambda n: not renders(n))
    assert 1500 < most < 1700  # some 64 MiB / 40 kB
    assert [renders(n) for n in (most, most + 1, most, most + 1)] == [True, False] * 2


def test_what_a_template_gets_is_as_safe_as_what_it_makes() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested deeper than 64"):
        render("{{ tools }}", tools=deep)
    with pytest.raises(InvalidRequest, match="64 MiB of work"):
        render("{{ tools | tojson }}", tools=["x" * 1000] * 10_000)


@pytest.mark.parametrize(
    "source",
    [
        "{{ (messages | map).gi_frame }}",
        "{{ namespace.__init__ }}",
        "{{ namespace(a=1)._Namespace__attrs }}",
        "{% for m in messages %}{{ loop._iterable }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m.name }}{{ m._func }}{{ m['_func'] }}",
        "{{ strftime_now._function }}{{ strftime_now['_function'] }}{{ range.__call__ }}",
        "{{ ''.split._bound }}{{ ''['__class__'] }}{{ {}.__class__ }}{{ [].append }}{{ {}.pop }}",
        "{{ '{0.__class__}{0[__class__]}'.format(1) }}",
        "{{ (1).bit_length }}{{ 1.0.real }}{{ none.x }}{{ true.numerator }}",
        "{{ [''] | map(attribute='__class__') | first }}",
        "{{ self.x }}{{ cycler }}{{ joiner }}{{ dict }}{{ environment }}{{ context }}",
    ],
)
def test_nothing_of_python_is_in_reach(source: str) -> None:
    assert render(source) == ""


def test_a_loops_and_a_macros_variables_reach_it() -> None:
    source = (
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
        "{% for x in 'ab' %}{{ m(loop.index, 7, 8, c=x) }}{{ loop.cycle('p', 'q') }}"
        "{{ loop.changed(x) }}{{ loop.nextitem }}{{ loop.revindex }}{% endfor %}"
    )
    assert render(source) == plain_jinja(source, {})


def test_arguments_may_have_any_name() -> None:
    names = ("context", "_context", "obj", "text", "value", "args", "kwargs")
    given = ", ".join(f"{name}={index}" for index, name in enumerate(names))
    fields = "".join(f"{{{name}}}" for name in names)
    source = (
        f"{{% macro m({', '.join(names)}) %}}{{{{ {' ~ '.join(names)} }}}}{{% endmacro %}}"
        f"{{{{ m({given}) }}}} {{{{ namespace({given}).obj }}}} "
        f"{{{{ '{fields}'.format({given}) }}}}"
    )
    assert render(source) == "0123456 2 0123456"


def test_integers_may_have_64_bits() -> None:
    source = "{{ 2**63 }} {{ 2**33 * 3 }} {{ 10**19 }} {{ (-2)**63 }} {{ 1**1000 }} {{ 2**-1 }}"
    assert render(source) == plain_jinja(source, {})
    for larger in ("2**64", "2**63 * 2", "2**63 + 2**63", "18446744073709551616 - 1"):
        with pytest.raises(InvalidRequest, match="more than 64 bits"):
            render("{{ " + larger + " }}")


def test_what_is_undefined_is_in_nothing() -> None:
    source = "{{ x in {'a': 1} }}{{ {'a': 1}.get(x) }}{{ {'a': 1}[x] }}{{ x in [] }}{{ 'a' in x }}"
    assert render(source) == plain_jinja(source, {})


def test_a_chain_of_comparisons_ends_at_its_first_false_link() -> None:
    source = "{{ 3 < 2 < x.y }} {{ 1 < 2 < 3 == 3.0 != 4 }} {{ 1 < 2 < 2 }}"
    assert render(source, x="") == plain_jinja(source, {"x": ""})


def test_what_is_rounded_counted_batched_and_reversed_is_as_in_jinja() -> None:
    source = (
        "{{ 2.567 | round(2) }} {{ 2.1 | round(method='ceil') | int }} {{ 17 | round(-1) }} "
        "{{ 'a b-c, d' | wordcount }} {% for b in range(5) | batch(2, 'x') %}{{ b }}{% endfor %}"
        "{% for x in [1, 2] | reverse %}{{ x }}{{ loop.length }}{% endfor %}{{ 'ab' | reverse }}"
        "{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}"
        "{% for k in undefined_one | items %}{{ k }}{% endfor %}"
    )
    assert render(source) == plain_jinja(source, {})


def test_what_is_marked_for_training_is_printed() -> None:
    source = "{% generation %}{% set x = 1 %}a{{ x }}{% endgeneration %}{{ x }}"
    assert render(source) == plain_jinja(source, {}) == "a1"


def test_safe_marks_nothing_because_nothing_is_escaped() -> None:
    assert render("{{ ('<' | safe) + '<' }}{{ '<' | e }}") == "<<&lt;"


def test_a_namespace_in_itself_prints_as_one() -> None:
    assert render("{% set n = namespace() %}{% set n.n = n %}{{ n }}") == "<Namespace>"
