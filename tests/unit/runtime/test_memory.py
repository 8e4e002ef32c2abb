from __future__ import annotations

from pathlib import Path

from headway.runtime.memory import available_host_bytes

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


MEMINFO = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 4096000 kB\n"}


def test_without_a_limit_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO | {"proc/self/cgroup": "0::/\n"})
    assert available_host_bytes(tmp_path) == 4000 * MIB


def test_a_cgroups_limit_counts_less_what_it_uses_and_cannot_give_up(tmp_path: Path) -> None:
    write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": f"{1000 * MIB}\n",
            "sys/fs/cgroup/a/b/memory.current": f"{300 * MIB}\n",
            "sys/fs/cgroup/a/b/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
        },
    )
    assert available_host_bytes(tmp_path) == 800 * MIB


def test_the_limit_of_a_cgroup_further_up_counts_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "5\n",
            "sys/fs/cgroup/a/b/memory.stat": "",
            "sys/fs/cgroup/a/memory.max": f"{500 * MIB}\n",
            "sys/fs/cgroup/a/memory.current": "0\n",
            "sys/fs/cgroup/a/memory.stat": "",
        },
    )
    assert available_host_bytes(tmp_path) == 500 * MIB


def test_version_1_of_cgroups(tmp_path: Path) -> None:
    write(
        tmp_path,
        MEMINFO
        | {
            "proc/self/cgroup": "3:cpu:/x\n2:memory:/box\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{700 * MIB}\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{100 * MIB}\n",
            "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert available_host_bytes(tmp_path) == 600 * MIB


def test_where_nothing_is_told_it_is_the_physical_memory(tmp_path: Path) -> None:
    assert available_host_bytes(tmp_path) > MIB
