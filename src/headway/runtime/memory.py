"""How much memory a device has left, as far as this process may use it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_host_bytes"]


def available_host_bytes(root: Path = Path("/")) -> int:
    """Bytes of host memory that can be had without swapping.

    The kernel's estimate (`MemAvailable`), or what the cgroups of this process leave of their
    limits where that is less. Where neither is told (not Linux): all physical memory.
    `root` is where `/proc` and `/sys` are looked for.
    """
    found = [*_cgroup_rooms(root)]
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    if not found:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min(found))


def _cgroup_rooms(root: Path) -> list[int]:
    """What each cgroup of this process, and those above it, leaves of its limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            room = _room(directory, limit, usage)
            if room is not None:
                rooms.append(room)
            if directory == base:
                break
    return rooms


def _room(directory: Path, limit: str, usage: str) -> int | None:
    try:
        most = (directory / limit).read_text().strip()
        used = int((directory / usage).read_text())
        stat = (directory / "memory.stat").read_text()
    except OSError:
        return None
    if most == "max":
        return None
    # File pages that nobody used lately are counted, and given up on demand.
    reclaimable = [int(line.split()[1]) for line in stat.splitlines() if "inactive_file" in line]
    return int(most) - used + max(reclaimable, default=0)
