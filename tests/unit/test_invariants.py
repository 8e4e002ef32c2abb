"""docs/invariants.md and the code that checks it name the same numbers and functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIMULATION = sorted((ROOT / "src" / "headway" / "sim").glob("*.py"))
CHECKERS = [
    *SIMULATION,
    *(ROOT / "tests" / "property").glob("test_*.py"),
    *(ROOT / "tests" / "sim").glob("test_*.py"),
    *(ROOT / "tests" / "unit" / "core").glob("test_*.py"),
]
NUMBER = re.compile(r"\b[Ii](\d+)\b|(?<=_)i(\d+)(?=_)")


def table() -> dict[int, str]:
    """Number → the line of the table, which must count from 1 without a gap."""
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| I(\d+) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1))
    return {int(number): line for number, line in lines}


def functions(path: Path) -> dict[str, str]:
    """`Class.function`, `function` or `Class` → its source."""
    text = path.read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.get_source_segment(text, node) or ""
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    source = ast.get_source_segment(text, inner) or ""
                    found[f"{node.name}.{inner.name}"] = source
    return found


def numbers(text: str) -> set[int]:
    return {int(a or b) for a, b in NUMBER.findall(text)}


def test_every_number_in_the_code_is_in_the_table() -> None:
    named = set().union(*(numbers(path.read_text(encoding="utf-8")) for path in CHECKERS))
    assert named <= set(table())


def test_every_invariant_is_named_where_the_table_says_it_is_checked() -> None:
    sources: dict[str, str] = {}
    for path in CHECKERS:
        sources |= functions(path)
        sources[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    for number, line in table().items():
        places = re.findall(r"`([^`]+)`", line.split("|")[-1])
        assert places, f"I{number} is checked nowhere"
        for place in places:
            assert place in sources, f"I{number}: there is no {place}"
            assert number in numbers(sources[place]), f"{place} does not name I{number}"


def test_every_function_that_names_an_invariant_is_in_its_line() -> None:
    lines = table()
    for path in SIMULATION:
        for name, source in functions(path).items():
            for number in numbers(source):
                assert f"`{name}" in lines[number], f"{name} checks I{number}"
