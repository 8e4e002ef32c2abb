"""Every rule of docs/design/scheduling.md has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
RULES = {
    *(f"s{i}" for i in range(1, 17)),
    *(f"k{i}" for i in range(1, 11)),
    *(f"p{i}" for i in range(1, 6)),
    *(f"a{i}" for i in range(1, 4)),
}


def test_every_rule_has_a_test_that_names_it() -> None:
    named = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                named |= set(re.findall(r"(?<=_)[skpa]\d+(?=_)", node.name))
    assert named == RULES
