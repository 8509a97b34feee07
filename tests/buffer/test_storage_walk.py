"""Random histories: SQLite and memory never disagree, and no drawn group is ever lost or in two places (R3, D1)."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stored_values import ON_POLICY, TASK, facts_of, group_of, make_failure, make_partial, make_rollout

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.errors import RunError
from loopwright.ports import GroupRow, Storage
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Failed, FailureCause, GroupStatus, Reward, Rollout, Scored, Unscored

DRAWS = st.integers(0, 3)
MEMBERS = st.integers(0, 2)
VERSIONS = st.integers(0, 3)
STEPS = st.integers(0, 4)
REWARDS = st.sampled_from([None, Unscored(), Failed(FailureCause.JUDGE, "Timeout", "no score"), Scored(0.5)])


class Walk(RuleBasedStateMachine):
    """Does everything to both, and compares what they answer."""

    @initialize(history=st.lists(st.tuples(VERSIONS, VERSIONS, st.sampled_from(GroupStatus), STEPS), max_size=4))
    def open(self, history: list[tuple[int, int, GroupStatus, int]]) -> None:
        """Start with some history, so that already the first resume has something to undo."""
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.memory = MemoryStorage()
        self.sqlite = SqliteStorage(self.folder / "rollouts.sqlite")
        self.runner.run(self.sqlite.__aenter__())
        self.rows: dict[int, GroupRow] = {}
        self.drawn = 0
        for draw, (version, later, status, step) in enumerate(history):
            self.draw(draw, version)
            self.put(draw, 0, 0, max(version, later), False)
            self.mark([draw], status, step)

    def teardown(self) -> None:
        self.runner.run(self.sqlite.__aexit__(None, None, None))
        self.runner.close()
        shutil.rmtree(self.folder)

    def both(self, call: Callable[[Storage], Awaitable[Any]]) -> Any:
        """The answer of both, which is the same; a refusal is an answer too."""

        async def answer(storage: Storage) -> Any:
            try:
                return await call(storage)
            except RunError as error:
                return str(error)

        ours, theirs = (self.runner.run(answer(storage)) for storage in (self.memory, self.sqlite))
        assert comparable(ours) == comparable(theirs)
        return ours

    @rule(draw=DRAWS, version=VERSIONS)
    def draw(self, draw: int, version: int) -> None:
        row = self.both(lambda storage: storage.draw("train", draw, TASK, version))
        if isinstance(row, GroupRow):
            self.rows[draw] = row
            self.drawn += 1

    @rule(draw=DRAWS, member=MEMBERS, attempt=st.integers(0, 1), version=VERSIONS, fails=st.booleans(), reward=REWARDS)
    def put(
        self, draw: int, member: int, attempt: int, version: int, fails: bool, reward: Reward | None = None
    ) -> None:
        sound = make_rollout(draw, member, attempt, version=version, reward=reward)
        whole = make_failure(draw, member, attempt) if fails else sound
        rollout = make_partial(draw, member, attempt, version=version) if reward == Unscored() else whole
        self.both(lambda storage: storage.put(self.row(draw), rollout))

    @rule(draw=DRAWS, members=st.lists(MEMBERS, min_size=1, max_size=3, unique=True), reward=REWARDS)
    def put_rewards(self, draw: int, members: list[int], reward: Reward | None) -> None:
        rollouts = [make_rollout(draw, member, reward=reward) for member in members]
        self.both(lambda storage: storage.put_rewards(self.row(draw), rollouts))

    def row(self, draw: int) -> GroupRow:
        return self.rows.get(draw, GroupRow("train", draw, 0, TASK, 0, GroupStatus.PENDING))

    @rule(draws=st.lists(DRAWS, max_size=3, unique=True), status=st.sampled_from(GroupStatus), step=STEPS)
    def mark(self, draws: list[int], status: GroupStatus, step: int) -> None:
        if status is GroupStatus.CONSUMED:
            self.both(lambda storage: storage.consume([group_of(make_rollout(draw)) for draw in draws], step))
        elif status is GroupStatus.PENDING:
            for draw in draws:
                self.take_up(draw, step)
        else:
            self.both(lambda storage: storage.mark([("train", draw) for draw in draws], status))

    def take_up(self, draw: int, version: int) -> None:
        row = self.both(lambda storage: storage.take_up(self.row(draw), version))
        if isinstance(row, GroupRow):
            self.rows[draw] = row

    @rule(step=STEPS, draws=st.lists(DRAWS, max_size=3, unique=True))
    def evaluate(self, step: int, draws: list[int]) -> None:
        rollouts = [make_rollout(draw, task_set="eval") for draw in draws]
        self.both(lambda storage: storage.put_eval(step, "eval", "greedy", rollouts))

    @rule(step=STEPS, next_draw=st.none() | DRAWS)
    def resume(self, step: int, next_draw: int | None) -> None:
        next_draws = None if next_draw is None else {"train": next_draw}
        plans, again = (
            self.both(lambda storage: storage.resume(["train"], step=step, next_draws=next_draws, policy=ON_POLICY))
            for _ in range(2)
        )
        assert plans == again, "resuming twice is resuming once"
        # Whoever goes on learns how often the group has expired.
        self.rows |= {held.row.draw: held.row for held in plans["train"].held}

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.sqlite.__aexit__(None, None, None))
        self.sqlite = SqliteStorage(self.folder / "rollouts.sqlite")
        self.runner.run(self.sqlite.__aenter__())

    @invariant()
    def every_drawn_group_is_in_exactly_one_status(self) -> None:
        counts = self.both(lambda storage: storage.counts())
        assert sum(counts.get("train", {}).values()) == self.drawn

    @invariant()
    def the_same_is_stored(self) -> None:
        for draw in range(4):
            self.both(lambda storage, draw=draw: storage.rollouts_of("train", draw))  # type: ignore[misc]
        run = StoredRun(self.folder / "rollouts.sqlite")
        for step in range(5):
            stored = run.eval_rollouts(step, "eval", "greedy")
            assert comparable(stored) == comparable(self.memory.eval_rollouts(step, "eval", "greedy"))


def comparable(answer: Any) -> Any:
    if isinstance(answer, Rollout):
        return facts_of(answer)
    if isinstance(answer, tuple):
        return [comparable(part) for part in answer]
    return answer


# Shrinking a history takes minutes, and a history is readable as it is.
UNSHRUNK = set(Phase) - {Phase.shrink, Phase.explain}
WALK = settings(max_examples=12, stateful_step_count=12, deadline=None, phases=UNSHRUNK)
Walk.TestCase.settings = WALK
test_sqlite_and_memory_walk_together = Walk.TestCase


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestForLong(Walk.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(WALK, max_examples=200)
