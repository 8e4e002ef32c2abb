"""Kinds of load that come with the package, each a file beside this one in `kinds/`.

Their lengths and rates keep the default model on two CPU cores at about two thirds of what it can
do; `headway.workload.scaled` fits them to other machines.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["KINDS", "kind_path"]

KINDS = ("chat", "long-document", "mixed")
"""`chat`: many short questions after one system prompt, with others that follow. `long-document`:
long prompts that share nothing. `mixed`: short requests, and now and then a long one."""


def kind_path(name: str) -> Path:
    """The file that says what one of `KINDS` is."""
    return Path(__file__).parent / "kinds" / f"{name}.json"
