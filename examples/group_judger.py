"""A ranking: all answers to one task are judged together, and the shortest right one is the best.

judgers:
  best:
    kind: native
    path: group_judger.py:prefer_short
    per: group
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loopwright import Episode, Task


def prefer_short(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """0 for a wrong answer; right ones get from 0.5 (the longest of them) to 1 (the shortest)."""
    lengths = sorted(len(episode.answer) for episode in episodes if _is_right(task, episode))
    return [_score(len(episode.answer), lengths) if _is_right(task, episode) else 0.0 for episode in episodes]


def _is_right(task: Task, episode: Episode) -> bool:
    return re.findall(r"-?\d+", episode.answer)[-1:] == [str(task.truth)]


def _score(length: int, lengths: list[int]) -> float:
    longer = sum(other > length for other in lengths)
    return 0.5 + 0.5 * longer / max(1, len(lengths) - 1)
