"""Says which PyTorch pip is about to install and what there is to download.

Takes the report of `pip install --dry-run --report FILE torch`. Prints nothing where the
report lists nothing to install.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, url2pathname, urlopen

__all__ = ["announcement"]

_LARGE_BYTES = 1_000_000_000


def announcement(packages: list[dict[str, Any]]) -> str:
    """The lines to print for the report's `install` list; empty for an empty list."""
    if not packages:
        return ""
    names = {entry["metadata"]["name"]: entry["metadata"]["version"] for entry in packages}
    what = f"torch {names['torch']}" if "torch" in names else "what torch needs"
    try:
        sizes = {
            entry["metadata"]["name"]: _size_bytes(entry["download_info"]["url"])
            for entry in packages
        }
    except (OSError, ValueError):
        return f"headway: installing {what} (download size unknown)"
    total = sum(sizes.values())
    parts = f"{_megabytes(total)} to download"
    if len(packages) > 1 and "torch" in sizes:
        parts = f"{_megabytes(sizes['torch'])}, with its dependencies {parts}"
    line = f"headway: installing {what} ({parts})"
    if total > _LARGE_BYTES:
        line += "\nheadway: README.md says how to get the much smaller CPU build"
    return line


def _size_bytes(url: str) -> int:
    """Raises OSError or ValueError where it cannot be told without downloading."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path)).stat().st_size
    with urlopen(Request(url, method="HEAD"), timeout=10) as response:
        return int(response.headers.get("Content-Length", ""))


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if lines := announcement(report["install"]):
        print(lines)
