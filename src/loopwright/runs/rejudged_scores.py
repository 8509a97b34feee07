"""What another judger says of a run's rollouts: a folder beside the run's own data, which never changes the ledger.

`scores.jsonl` has a line for each judgement, written when the judger has answered. A rejudging that was killed goes on
with what has no score yet. All lines come from one judger: `judger.json` says which.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from loopwright.errors import RunError, RunLockedError
from loopwright.runs.durable import write_whole
from loopwright.track.jsonl import JsonlFile, read_jsonl
from loopwright.types import Failed, Reward, Rollout, RolloutKey, Scored

Place = tuple[RolloutKey, int]
"""A rollout, and the round of its group."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One rollout's score in the run, and the one of the other judger. None: it has no score there."""

    key: RolloutKey
    round: int
    task: str
    before: float | None
    after: float | None
    failure: str | None = None
    """Why the judger gave no score."""

    @classmethod
    def of(cls, rollout: Rollout, round: int, reward: Reward) -> Self:
        failure = f"{reward.error}: {reward.detail}" if isinstance(reward, Failed) else None
        after = reward.value if isinstance(reward, Scored) else None
        return cls(rollout.key, round, rollout.task.id, rollout.score, after, failure)

    def record(self) -> dict[str, Any]:
        key = {"task_set": self.key.task_set, "draw": self.key.draw, "member": self.key.member}
        scores = {"before": self.before, "after": self.after}
        failed = {} if self.failure is None else {"failure": self.failure}
        return {**key, "attempt": self.key.attempt, "round": self.round, "task": self.task, **scores, **failed}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        key = RolloutKey(record["task_set"], record["draw"], record["member"], record["attempt"])
        return cls(key, record["round"], record["task"], record["before"], record["after"], record.get("failure"))


class RejudgedScores:
    """The scores of one judger for one run. `open` locks their folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "scores.jsonl"
        self._file = JsonlFile(self.path)

    @classmethod
    @contextmanager
    def open(cls, folder: Path, judger: Mapping[str, Any], *, fresh: bool = False) -> Iterator[Self]:
        """Begin, or go on. `judger` is all that decides its scores; another one than before is refused."""
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            scores, identity = cls(folder), folder / "judger.json"
            if fresh:
                scores.path.unlink(missing_ok=True)
                identity.unlink(missing_ok=True)
            text = json.dumps(judger, indent=1, sort_keys=True) + "\n"
            if identity.exists() and identity.read_text("utf-8") != text:
                raise RunError(
                    f"the scores in {folder} come from a judger with another config or other code",
                    remedy="--fresh judges all rollouts again and forgets those scores",
                )
            write_whole(identity, text)
            yield scores

    def add(self, judgement: Judgement) -> None:
        self._file.append(judgement.record())

    def judgements(self) -> dict[Place, Judgement]:
        """The latest judgement of each rollout."""
        read = map(Judgement.read, read_jsonl(self.path))
        return {(one.key, one.round): one for one in read}

    def of(self, key: RolloutKey, round: int) -> Judgement | None:
        """The latest judgement of one rollout. The other lines are not parsed: there may be one for each rollout of a
        run."""
        found, named = None, f'"draw": {key.draw}, "member": {key.member}, '.encode()
        with self.path.open("rb") as file:
            for line in file:
                if named not in line:
                    continue
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    one = Judgement.read(json.loads(line))
                    found = one if (one.key, one.round) == (key, round) else found
        return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel releases it when the process dies in any way."""
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunLockedError(
                f"another `loopwright rejudge` writes into {folder}", remedy="wait for it, or stop it"
            ) from error
        yield
