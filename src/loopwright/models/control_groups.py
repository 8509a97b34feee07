"""Reads what the kernel reports about memory and about the control groups (both versions) of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60
"""Control groups of version 1 write 'no limit' as a huge number."""


def groups(root: Path, controller: str) -> Iterator[Path]:
    """The control group of this process and all its parent groups. The limits of each of them apply.

    Version 2 has one tree for all controllers, and does not name a controller.
    """
    for line in lines(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            tree = root / "sys/fs/cgroup" / controller
            inner = Path(path.strip("/"))
            yield from (tree / group for group in (inner, *inner.parents))


def memory_sizes(root: Path = ROOT) -> dict[str, int]:
    """The entries of the kernel's memory table (/proc/meminfo), in bytes."""
    return {words[0]: int(words[1]) * 1024 for words in map(str.split, lines(root / "proc/meminfo")) if words[2:]}


def memory_limits(root: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """The memory limits that apply to this process, in bytes, and the group of each limit."""
    named = [(group, "memory.max") for group in groups(root, "")]
    named += [(group, "memory.limit_in_bytes") for group in groups(root, "memory")]
    for group, name in named:
        yield from ((limit, group) for limit in read_numbers(group / name) if limit < UNLIMITED)


def free_memory(root: Path = ROOT) -> int | None:
    """How many bytes this process can still use before the kernel kills a process. None if the kernel does not say."""
    known = [] if (available := memory_sizes(root).get("MemAvailable:")) is None else [available]
    for limit, group in memory_limits(root):
        used = [*read_numbers(group / "memory.current"), *read_numbers(group / "memory.usage_in_bytes")]
        # File pages that were not used lately count as used memory, but the kernel frees them when memory is needed.
        stat = dict(line.split()[:2] for line in lines(group / "memory.stat"))
        known += [limit - each + int(stat.get("inactive_file", 0)) for each in used]
    return min(known) if known else None


def read_numbers(file: Path) -> list[int]:
    return [int(word) for line in lines(file) for word in line.split() if word.isdecimal()]


def lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
