"""What a replay gives the learner is what training gave it: the same groups, in their order, with the same masks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_up_run import CONFIG, add, answered

from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.errors import RunError
from loopwright.ports import StalePolicy, WeightSink
from loopwright.ports.learner import StepReport
from loopwright.runs.replay import RecordedSteps, replay
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import JsonlTracker
from loopwright.types import Group, GroupStatus, RolloutKey

Told = list[tuple[str, int, int]]


class Listener:
    """A learner that remembers what it is given."""

    describes = "nothing"

    def standing(self) -> tuple[()]:
        return ()

    def __init__(self) -> None:
        self.version = 0
        self.told: list[Told] = []

    async def step(self, groups: Sequence[Group]) -> StepReport:
        self.version += 1
        self.told.append(told(groups))
        return StepReport(self.version, {"loss": 1.0 * self.version, "grad_norm": 0.5})

    async def save(self, folder: Path) -> None: ...
    async def load(self, folder: Path) -> None: ...
    async def export(self, folder: Path) -> None: ...

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        raise NotImplementedError

    async def publish(self, sink: WeightSink) -> None:
        raise NotImplementedError


def told(groups: Sequence[Group]) -> Told:
    """Which groups, and how many of their tokens count."""
    return [
        (group.task_set, group.draw, sum(one.episode.sampled_tokens for one in group.rollouts if one.episode))
        for group in groups
    ]


async def make(folder: RunFolder) -> list[Told]:
    """Two steps with a group of each task set, all sampled by weights 0, which may feed one step only."""
    given = []
    async with SqliteStorage(folder.rollouts) as storage:
        buffer, _ = await StoredBuffer.resume(storage, StalePolicy(horizon=1), ["z", "a"])
        for draw in (0, 1):
            for name in ("z", "a"):
                started = await buffer.draw(name, draw, add(draw, 1), version=0)
                await buffer.put(started.row, answered(RolloutKey(name, draw, 0), add(draw, 1), "12", version=0))
                await buffer.settle(started.row, GroupStatus.COMPLETED)
        for step in (1, 2):
            groups = await buffer.take(step, {"z": 1, "a": 1})
            given.append(told(groups))
            await buffer.consume(groups, step)
            JsonlTracker(folder.path).log(step, {"learner/loss": float(step), "learner/grad_norm": 0.5})
    return given


def test_the_learner_is_given_the_same_groups_in_their_order_with_stale_tokens_masked(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG) as folder:
        given = asyncio.run(make(folder))
    learner = Listener()
    replayed = asyncio.run(replay(learner, RecordedSteps(folder), 2, exact=True))
    assert learner.told == given
    assert [name for name, _, _ in given[0]] == ["z", "a"], "neither the alphabet nor chance"
    assert given[0][0][2] > 0
    assert given[1][0][2] == 0, "too old for the second step"
    assert (replayed.start, replayed.equal) == (0, True)


def test_a_step_without_groups_cannot_be_replayed(made_up_run: RunFolder) -> None:
    with pytest.raises(RunError, match="no group that train step 9 consumed"):
        RecordedSteps(made_up_run).groups(9)
