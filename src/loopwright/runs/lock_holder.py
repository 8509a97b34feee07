"""Who uses a run's folder, found out without touching its lock: whoever tried to take it would turn a run away."""

from __future__ import annotations

import os
from pathlib import Path

LOCKS = Path("/proc/locks")


def lock_holder(lock: Path) -> int | None:
    """The process that holds the lock, or None. Without /proc, a process of the number in the file counts."""
    try:
        found = lock.stat()
        if LOCKS.exists():
            return _in_table(f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}")
        pid = int(lock.read_text("ascii").strip())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _in_table(file: str) -> int | None:
    for line in LOCKS.read_text("ascii").splitlines():
        fields = line.split()
        # `1: FLOCK ADVISORY WRITE 4242 08:01:123 0 EOF`; one that waits for a lock has an arrow before its kind.
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[3] == "WRITE" and fields[5] == file:
            return int(fields[4])
    return None
