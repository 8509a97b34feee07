"""How much memory is left, from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.models.control_groups import free_memory

MEMINFO = "MemTotal: 16000 kB\nMemAvailable: 8000 kB\n"
AVAILABLE = 8000 * 1024


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, AVAILABLE),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/box\n",
                "sys/fs/cgroup/box/memory.max": "5000\n",
                "sys/fs/cgroup/box/memory.current": "4000\n",
                "sys/fs/cgroup/box/memory.stat": "anon 3000\ninactive_file 700\n",
            },
            1700,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/box\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "4000\n",
            },
            1000,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/box\n",
                "sys/fs/cgroup/box/memory.max": "max\n",
                "sys/fs/cgroup/box/memory.current": "4000\n",
            },
            AVAILABLE,
        ),
    ],
    ids=["unknown", "no group", "version two", "version one", "no limit"],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    assert free_memory(tree(tmp_path, files)) == free
