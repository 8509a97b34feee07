"""Cores, memory and disks that this process may use. The limits of a container count, not the size of the host.

A value that cannot be read is None.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from loopwright.doctor.facts import Cores, Disk, FolderPurpose, Memory
from loopwright.models.control_groups import ROOT, groups, lines, memory_limits, memory_sizes


def cores(root: Path = ROOT) -> Cores:
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    quotas = [quota for group in groups(root, "") if (quota := _share(_words(group / "cpu.max")))]
    for group in groups(root, "cpu"):
        words = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        quotas += [quota] if (quota := _share(words)) else []
    return Cores(os.cpu_count(), affinity, min(quotas, default=None))


def memory(root: Path = ROOT) -> Memory:
    sizes, limits = memory_sizes(root), [limit for limit, _ in memory_limits(root)]
    return Memory(sizes.get("MemTotal:"), sizes.get("MemAvailable:"), min(limits, default=None))


def disk(purpose: FolderPurpose, folder: Path, root: Path = ROOT) -> Disk:
    """The file system of `folder`, or of the nearest folder above it that exists."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        free = None
    mount, kind = _mount(existing.resolve(), root) or (None, None)
    return Disk(purpose, str(folder), mount, free, kind, os.access(existing, os.W_OK | os.X_OK))


def _share(words: list[str]) -> float | None:
    """`quota period` in microseconds as a number of cores. `max` and -1 mean no quota."""
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _mount(folder: Path, root: Path) -> tuple[str, str] | None:
    """The mount point of the file system that holds `folder`, and its type."""
    best: tuple[str, str] | None = None
    for line in lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode("latin-1", "replace").decode("unicode_escape")
        if folder.is_relative_to(point) and (best is None or len(point) >= len(best[0])):
            best = point, after.split()[0]
    return best


def _words(file: Path) -> list[str]:
    return [word for line in lines(file) for word in line.split()]
