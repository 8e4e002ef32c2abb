"""Templates that would eat memory or time, run in a process that may have little of either.

    python template_bombs.py        prints a JSON object: name → [what ended it, CPU seconds]

What imports `headway` is not imported by importing this file's `BOMBS`.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path

MEMORY_BYTES = 160 * 2**20
"""More than the child has when it begins."""

_GROW = "{%% set ns = namespace(x='a' * 1000) %%}{%% for i in range(99) %%}%s{%% endfor %%}"
_TREE = (
    "{%% set ns = namespace(x=%s, y=%s) %%}{%% for i in range(60) %%}"
    "{%% set ns.x = %s %%}{%% set ns.y = %s %%}{%% endfor %%}{{ %s }}"
)
_LOOPS = "{%% set r = range(300) %%}{%% for a in r %%}{%% for b in r %%}{%% for c in r %%}%s{%% endfor %%}{%% endfor %%}{%% endfor %%}"  # noqa: E501


def _list_tree(use: str) -> str:
    return _TREE % ("['a']", "['a']", "[ns.x, ns.x]", "[ns.y, ns.y]", use)


def _tuple_tree(use: str) -> str:
    return _TREE % ("('a',)", "('a',)", "(ns.x, ns.x)", "(ns.y, ns.y)", use)


WORK = "MiB of work"
BOMBS: dict[str, tuple[str, str]] = {
    # name: source, part of the reason
    "text times number": ("{{ 'a' * 10**9 }}", WORK),
    "number times text": ("{{ 10**9 * 'é' }}", WORK),
    "list times number": ("{{ [1] * 10**9 }}", WORK),
    "doubling by ~": (_GROW % "{% set ns.x = ns.x ~ ns.x %}", WORK),
    "doubling by +": (_GROW % "{% set ns.x = ns.x + ns.x %}", WORK),
    "widening": (
        "{% set x = 'a' * 25000000 %}{% set y = x ~ x[1:] ~ '🙂' %}{% set z = y ~ y %}",
        WORK,
    ),
    "doubling lists": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        WORK,
    ),
    "doubling by set blocks": (
        "{% set x = 'a' * 1000 %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
        WORK,
    ),
    "doubling by macros": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
        "{{ m(40) }}",
        WORK,
    ),
    "doubling by callers": (
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call m() %}" * 40
        + "x"
        + "{% endcall %}" * 40,
        WORK,
    ),
    "tenfold by filter blocks": (
        "{% filter replace('a', 'aaaaaaaaaa') %}" * 30 + "a" + "{% endfilter %}" * 30,
        WORK,
    ),
    "endless recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    "wide %": ("{{ '%1000000000d' % 1 }}", "'%' formats no text"),
    "wide % by a test": ("{{ '%1000000000d' is odd }}", "'%' formats no text"),
    "wide % by select": ("{{ ['%1000000000d'] | select('even') | list }}", "'%' formats no text"),
    "wide format": ("{{ '{:>1000000000}'.format(1) }}", "too wide"),
    "wide nested format": ("{{ '{:>{w}}'.format(1, w=10**9) }}", "too wide"),
    "long format": ("{{ ('{0:>999}' * 100000).format(1) }}", WORK),
    "long values of format": ("{{ ('{0}' * 10000).format('x' * 100000) }}", WORK),
    "format of a tree": (_list_tree("'{}{!r}'.format(1, ns.x)"), WORK),
    "indent": ("{{ ('a\n' * 100000) | indent(10**9) }}", WORK),
    "indent of blanks": ("{{ ('\n' * 100000) | indent('x' * 1000, blank=true) }}", WORK),
    "indent by NaN": ("{{ ('\n' * 100000) | indent('nan' | float) }}", WORK),
    "replace": ("{{ ('a' * 10000) | replace('a', 'b' * 10000) }}", WORK),
    "replace method": ("{{ ('a' * 10000).replace('a', 'b' * 10000) }}", WORK),
    "replace nothing": ("{{ ('a' * 100000).replace('', 'b' * 1000) }}", WORK),
    "join": ("{{ range(10000) | join('x' * 100000) }}", WORK),
    "join method": ("{{ ('x' * 100000).join(['a'] * 10000) }}", WORK),
    "split": ("{{ ('a' * 60000000).split('a') | length }}", WORK),
    "split at blanks": ("{{ ('a ' * 30000000).split() | length }}", WORK),
    "splitlines": ("{{ ('\n' * 60000000).splitlines() | length }}", WORK),
    "list of text": ("{{ ('é' * 10000000) | list | length }}", WORK),
    "title": ("{{ ('a ' * 10000000) | title | length }}", WORK),
    "escape": ("{{ ('<' * 20000000) | e | length }}", WORK),
    "upper": ("{{ ('ŉ' * 6000000) | upper | upper | length }}", WORK),
    "tojson of escapes": ("{{ ('\x00' * 20000000) | tojson | length }}", WORK),
    "tojson with indent": ("{{ [[1]] | tojson(indent=10**9) }}", "indent"),
    "tojson with separators": (
        "{{ ([1] * 10000) | tojson(separators=('x' * 100000, ':')) }}",
        "separator",
    ),
    "range": ("{{ range(10**12) | list }}", WORK),
    "lists of ranges": (
        "{% for i in range(1000) %}{% set x = range(10000) | list %}{% endfor %}",
        WORK,
    ),
    "sum of a range": ("{{ range(10**12) | sum }}", WORK),
    "length of a range in reverse": (
        "{% for x in range(8000000) | reverse %}{{ loop.length }}{% break %}{% endfor %}",
        WORK,
    ),
    "lengths of items": (
        "{% set d = {" + ", ".join(f"{key}: 0" for key in range(2500)) + "} %}"
        "{% for i in range(60000) %}"
        "{% for x in d | items %}{% set n = loop.length %}{% break %}{% endfor %}{% endfor %}",
        WORK,
    ),
    "batches filled up": ("{{ [1] | batch(10**9, 'x') | list | length }}", WORK),
    "batches of a range": ("{{ range(10**12) | batch(2) | list | length }}", WORK),
    "count of words": ("{{ ('ab ' * 20000000) | wordcount }}", WORK),
    "round by a power": ("{{ 1 | round(10**9, 'floor') }}", "precision is beyond"),
    "round to a power": ("{{ 2 | round(-(10**9)) }}", "precision is beyond"),
    "find in a range": ("{{ 'x' in range(10**12) }}", WORK),
    "unpacking": ("{{ '{}'.format(*range(10**6)) }}", "unpacked arguments"),
    "print a tree": (_list_tree("ns.x"), WORK),
    "json of a tree": (_list_tree("ns.x | tojson"), WORK),
    "compare trees": (_list_tree("ns.x == ns.y"), WORK),
    "compare trees in a chain": (_list_tree("1 < 2 < 3 and ns.x == ns.y == ns.x"), WORK),
    "find a tree": (_tuple_tree("ns.x in [ns.y]"), WORK),
    "select a tree": (_tuple_tree("[ns.x] | select('eq', ns.y) | list"), WORK),
    "sort trees": (_tuple_tree("[ns.x, ns.y] | sort"), WORK),
    "hash a tree": (_tuple_tree("{ns.x: 1}"), "cannot be a key"),
    "look up a tree": (_tuple_tree("{'a': 1}.get(ns.x)"), "cannot be a key"),
    "raise a tree": (_tuple_tree("raise_exception(ns.x)"), WORK),
    "a loop's change of trees": (
        _tuple_tree("0")[:-7]
        + "{% for i in [ns.x, ns.y] %}{% set c = loop.changed(i) %}{% endfor %}",
        WORK,
    ),
    "power": ("{{ 10**10**8 }}", "64 bits"),
    "power of numbers": ("{{ (10**8)**(10**8) }}", "64 bits"),
    "large number": ("{% set x = ('f' * 1000000) | int(base=16) %}{{ x * x }}", "64 bits"),
    "squares": (
        "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}"
        "{% endfor %}",
        "64 bits",
    ),
    "loops": (_LOOPS % "", WORK),
    "loops that do": (_LOOPS % "{% set x = messages[0].content == 'hi' and 'x' in 'xyz' %}", WORK),
    "loops that call": (_LOOPS % "{% set x = 'a'.strip() | trim %}", WORK),
    "loops that filter": (_LOOPS.replace("c in r", "c in r if false") % "x", WORK),
    "loops of the clock": (_LOOPS % "{{ strftime_now('%c') }}", WORK),
    "filters of filters": (
        "{% set r = range(999) %}{% for a in r %}{% for b in r %}"
        "{{ r | map('string') | map('upper') | select('in', r) | list | length }}"
        "{% endfor %}{% endfor %}",
        WORK,
    ),
    "long attributes": (
        "{% set x = ['a'] %}{% for a in range(90000) %}"
        "{% set y = x | map(attribute='" + "0." * 400 + "0') | list %}{% endfor %}",
        WORK,
    ),
    "search": (
        "{% set h = 'a' * 29999 %}{% set n = 'a' * 49 ~ 'b' ~ 'a' * 49 %}"
        "{% for i in range(100000) %}{% set x = n in h or h.count(n) %}{% endfor %}",
        WORK,
    ),
    "strip": (
        "{% set h = 'a' * 29999 %}{% set n = 'b' * 10000 ~ 'a' %}"
        "{% for i in range(100000) %}{% set x = h.strip(n) %}{% endfor %}",
        WORK,
    ),
    "compare texts": (
        "{% set x = 'a' * 1000000 %}{% set y = 'a' * 1000000 %}"
        "{% for i in range(100000) %}{% set z = x == y %}{% endfor %}",
        WORK,
    ),
    "cut": (
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{% set y = x[1:] %}{% endfor %}",
        WORK,
    ),
    "look up a long key": ("{{ {'a': 1}['a' * 100000] }}", "key is longer"),
    "a charge below zero": (
        "{% for i in range(100000) %}{{ [-10**9] | map('+step') | list }}{{ 'a' * 1000000 }}"
        "{% endfor %}",
        WORK,
    ),
    "long strftime": ("{{ strftime_now('%1000000d' * 1000) }}", "format has more than"),
    "long reason": ("{{ raise_exception('reason' * 1000000) }}", "reasonreason"),
    "lipsum": ("{{ lipsum(n=10**6) }}", "'lipsum' is undefined"),
    "center": ("{{ 'a'.center(10**9) }}", "no attribute 'center'"),
    "center filter": ("{{ 'a' | center(10**9) }}", "No filter named 'center'"),
}


def _main() -> None:
    from headway.errors import InvalidRequest, ModelError  # noqa: PLC0415
    from headway.text.chat_template import ChatTemplate  # noqa: PLC0415

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
    results: dict[str, tuple[str, float]] = {}
    for name, (source, _) in BOMBS.items():
        gc.collect()  # what the error before this one holds
        start = time.process_time()
        try:
            template = ChatTemplate(source, bos_token="", eos_token="")
            reason = template.render([{"role": "user", "content": "hi"}])[:100] + " (no error)"
        except (InvalidRequest, ModelError) as error:
            reason = f"{'memory ' * isinstance(error.__cause__, MemoryError)}{error}"
        results[name] = reason, time.process_time() - start
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    _main()
