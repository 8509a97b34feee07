"""What `loopwright rollout` has collected in a folder: as numbers, and as one JSON lines file."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loopwright.errors import RunError
from loopwright.runs.durable import draft_of, flush
from loopwright.runs.export import to_line
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Failed, GroupStatus


@dataclass(frozen=True, slots=True)
class Gathered:
    """`reward` is None if there is no score. Failures are counted by cause over all attempts, also if a later attempt
    succeeded."""

    groups: int
    failed_groups: int
    scored: int
    reward: float | None
    failures: Mapping[str, int]


def gathered(folder: RunFolder) -> Gathered:
    """The numbers of everything in the folder's database."""
    stored = StoredRun(folder.rollouts)
    scores: list[float] = []
    failures: Counter[str] = Counter()
    for attempt in stored.attempts():
        rollout = attempt.rollout
        if isinstance(rollout.reward, Failed):
            failures[rollout.reward.cause.value] += 1
        elif rollout.score is not None and attempt.status is GroupStatus.CONSUMED:
            scores.append(rollout.score)
    counts = stored.counts().values()
    return Gathered(
        groups=sum(count[GroupStatus.CONSUMED] for count in counts),
        failed_groups=sum(count[GroupStatus.FAILED] for count in counts),
        scored=len(scores),
        reward=statistics.fmean(scores) if scores else None,
        failures=failures,
    )


def write_lines(folder: RunFolder, path: Path) -> None:
    """Write every attempt as one line to `path`. The file is either the old one or the complete new one."""
    draft = draft_of(path)
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(f"{to_line(attempt)}\n" for attempt in StoredRun(folder.rollouts).attempts())
        flush(draft)
        draft.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}", remedy="choose another place for --jsonl") from error
