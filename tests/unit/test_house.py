"""The rules of the house that the linters do not check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src" / "headway").rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
LONG_FUNCTIONS: dict[str, str] = {}
"""`path:function` → why it may be longer. A name that is no longer needed fails too."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def defines_all(tree: ast.Module) -> bool:
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def test_there_are_modules_to_check() -> None:
    assert ROOT / "src" / "headway" / "errors.py" in MODULES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


def test_functions_are_short() -> None:
    long = {
        f"{name_of(path)}:{function.name}"
        for path in MODULES
        for function in functions(ast.parse(path.read_text(encoding="utf-8")))
        if (function.end_lineno or 0) - function.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), "no docstring"
    offers_something = len(tree.body) > 1 and path.name != "__main__.py"
    assert defines_all(tree) or not offers_something, "no __all__"


def test_there_is_no_module_for_things_without_a_home() -> None:
    assert not [name_of(path) for path in MODULES if path.stem in {"utils", "helpers", "misc"}]


@pytest.mark.parametrize("module", ["headway", "headway.cli"])
def test_the_front_door_does_not_import_torch(module: str) -> None:
    program = (
        f"import sys, {module}; print(*sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


def test_imports_follow_the_floors() -> None:
    program = (
        "import sys; from importlinter.cli import lint_imports_command as run; sys.exit(run())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_changelog_fragments_have_a_known_type() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    types = [kind["directory"] for kind in settings["tool"]["towncrier"]["type"]]
    valid = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(types)})\.md")
    fragments = {path.name for path in (ROOT / "changes").iterdir()} - {"README.md"}
    assert not [name for name in sorted(fragments) if not valid.fullmatch(name)]
