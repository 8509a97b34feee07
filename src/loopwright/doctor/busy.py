"""How busy the machine is with the work of others.

The load average would not do: it looks back over minutes, so a benchmark that has just ended counts in it.
"""

from __future__ import annotations

import time
from pathlib import Path

SECONDS = 1.0
BUSY = 0.1
"""A machine that uses more of its cores than this has other work to do."""
IDLE = slice(3, 5)
"""Idle, and waiting for a disk."""
ALL = slice(0, 8)
"""What follows is counted in the others already. Time stolen by other guests of the host counts as busy."""


def busy_share(stat: Path = Path("/proc/stat"), seconds: float = SECONDS) -> float | None:
    """The share of all cores' time that was used within `seconds`; None where the kernel does not say."""
    if not stat.exists():
        return None
    before = _ticks(stat)
    time.sleep(seconds)
    return share_between(before, _ticks(stat))


def share_between(before: list[int], after: list[int]) -> float:
    """The used share of the ticks that passed between two readings."""
    passed = [late - early for early, late in zip(before, after, strict=True)]
    return 1 - sum(passed[IDLE]) / total if (total := sum(passed[ALL])) else 0.0


def _ticks(stat: Path) -> list[int]:
    """The clock ticks of all cores since the start, by what they did: the first line of the file."""
    return [int(count) for count in stat.read_text("utf-8").splitlines()[0].split()[1:]]
