"""A judger is a function: partial credit for answers that come close to the right number.

judgers:
  close:
    kind: native
    path: custom_judger.py:closeness
"""

from __future__ import annotations

import re

from loopwright import Episode, Scored, Task


def brevity(task: Task, episode: Episode) -> float:
    """1 for an empty answer, 0 for one of 100 characters or more."""
    return max(0.0, 1 - len(episode.answer) / 100)


def closeness(task: Task, episode: Episode) -> Scored:
    """1 for the right number, less the further away it is, 0 for no number at all."""
    numbers = re.findall(r"-?\d+", episode.answer)
    if not numbers:
        return Scored(0.0, {"has_number": 0.0})
    error = abs(int(numbers[-1]) - int(task.truth))
    return Scored(1 / (1 + error), {"has_number": 1.0, "error": float(error)})
