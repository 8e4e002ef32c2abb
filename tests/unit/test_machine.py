"""The machine in words."""

from __future__ import annotations

import os
import re

import pytest

from headway.machine import describe_machine


def test_it_says_cores_and_memory() -> None:
    assert re.search(r"\d+ cores?, \d+ GiB, \w+ \w+$", describe_machine())


def test_what_cannot_be_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def sysconf(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert "GiB" not in describe_machine()
