"""Measures how busy other programs keep the machine.

The load average cannot be used: it covers several minutes, so it includes a benchmark that has just ended.
"""

from __future__ import annotations

import time
from pathlib import Path

SECONDS = 1.0
BUSY = 0.1
"""If other programs use more than this share of the cores, the machine is busy."""
IDLE = slice(3, 5)
"""The columns for idle time and for waiting for a disk."""
ALL = slice(0, 8)
"""The columns that add up to all time; later columns are parts of these. Time that the host gives to other virtual
machines counts as busy."""


def busy_share(stat: Path = Path("/proc/stat"), seconds: float = SECONDS) -> float | None:
    """The share of all cores' time that was used within `seconds`. None if the kernel does not say."""
    if not stat.exists():
        return None
    before = _ticks(stat)
    time.sleep(seconds)
    return share_between(before, _ticks(stat))


def share_between(before: list[int], after: list[int]) -> float:
    """The used share of the ticks between two readings."""
    passed = [late - early for early, late in zip(before, after, strict=True)]
    return 1 - sum(passed[IDLE]) / total if (total := sum(passed[ALL])) else 0.0


def _ticks(stat: Path) -> list[int]:
    """The clock ticks of all cores since the start, by kind of use: the first line of the file."""
    return [int(count) for count in stat.read_text("utf-8").splitlines()[0].split()[1:]]
