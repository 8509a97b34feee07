"""Limits of containers, in both spellings, from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.doctor.facts import FolderPurpose
from loopwright.doctor.machine import cores, disk, memory

MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def root(tmp_path: Path):
    """Write files below a made-up root."""

    def write(**files: str) -> Path:
        for name, text in {"proc/meminfo": MEMINFO, **files}.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def test_version_two_counts_every_group_round_the_process(root):
    tree = root(
        **{
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/memory.max": "4096\n",
        }
    )
    assert cores(tree).quota == 1.5
    assert memory(tree).limit == memory(tree).usable == 4096


def test_version_one_has_a_tree_per_controller(root):
    tree = root(
        **{
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "8192\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )
    assert cores(tree).quota == 0.5
    assert memory(tree).limit == 8192


def test_no_limits_and_no_files_are_none(root, tmp_path):
    tree = root(**{"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"})
    assert cores(tree).quota is None
    assert memory(tree).limit is None
    assert memory(tree).machine == 16000000 * 1024
    nothing = tmp_path / "nothing"
    assert memory(nothing).usable is None
    assert cores(nothing).usable is not None, "the operating system still counts cores"


def test_the_nearest_mount_names_the_file_system(root, tmp_path):
    mounts = f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:1 / {tmp_path}/far rw shared:1 - nfs4 host:/x rw\n"
    tree = root(**{"proc/self/mountinfo": mounts})
    (tmp_path / "far").mkdir()
    assert disk(FolderPurpose.RUNS, tmp_path / "far" / "runs" / "x", tree).kind == "nfs4"
    assert disk(FolderPurpose.RUNS, tmp_path / "near", tree).kind == "ext4"
    assert disk(FolderPurpose.RUNS, tmp_path / "far" / "runs", tree).mount == f"{tmp_path}/far"
    assert disk(FolderPurpose.RUNS, tmp_path / "near", tree).free
