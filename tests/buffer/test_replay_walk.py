"""Random histories of the replay buffer, beside a model of it that is a list of groups.

Nothing is lost, doubled, handed out twice or trained too old, whatever comes when (R3, R5).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stored_values import TASK, make_partial, make_rollout

from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.ports import StalePolicy, StartedGroup, Storage
from loopwright.types import Group, GroupStatus, Stale

SETS = ("a", "b")
GOES_ON = st.sampled_from([GroupStatus.EXPIRED, GroupStatus.ABORTED])
ENDS = st.sampled_from([GroupStatus.COMPLETED, GroupStatus.FILTERED, GroupStatus.FAILED, GroupStatus.ABORTED])
MADE = st.tuples(st.sampled_from(SETS), st.booleans(), st.booleans())


@dataclass
class Known:
    """One drawn group as the model knows it. `tokens` holds the version of each whole member since it last expired."""

    task_set: str
    draw: int
    started: StartedGroup
    status: GroupStatus = GroupStatus.PENDING
    tokens: dict[int, int] = field(default_factory=dict)
    partial: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    since: int = 0
    newest: int = 0
    step: int | None = None
    expiries: int = 0

    @property
    def oldest(self) -> int | None:
        return min([*self.tokens.values(), *self.partial.values()], default=None)

    @property
    def age(self) -> tuple[int, int]:
        partial = [] if self.status is GroupStatus.COMPLETED else self.partial.values()
        return min([*self.tokens.values(), *partial], default=self.since), self.draw


class Walk(RuleBasedStateMachine):
    due: int
    """Up to which train step groups were expired."""

    @initialize(
        stale=st.sampled_from(Stale),
        horizon=st.integers(1, 2),
        max_expiries=st.integers(0, 2),
        history=st.lists(MADE, min_size=2, max_size=5),
    )
    def open(self, stale: Stale, horizon: int, max_expiries: int, history: list[tuple[str, bool, bool]]) -> None:
        """Start with some groups, so that there is something to take, to expire and to go on with."""
        self.policy = StalePolicy(stale, horizon, max_expiries)
        self.horizon = horizon
        self.runner = asyncio.Runner()
        self.storage = self.open_storage()
        self.known: list[Known] = []
        self.over: list[Known] = []
        self.taken: list[Group] = []
        self.version = 0
        self.resume(0)
        for made in history:
            self.make(made)

    def open_storage(self) -> Storage:
        return MemoryStorage()

    def teardown(self) -> None:
        self.runner.close()

    def of(self, task_set: str, *statuses: GroupStatus) -> list[Known]:
        return [group for group in self.known if group.task_set == task_set and group.status in statuses]

    @rule(made=MADE)
    def make(self, made: tuple[str, bool, bool]) -> None:
        """A group from its draw to its end, with a train step before it or in the middle of it."""
        task_set, early, late = made
        self.version += early
        group = self.draw(task_set)
        self.store(group, 0, partial=False)
        self.version += late
        self.store(group, 1, partial=late)
        self.end(group, GroupStatus.ABORTED if late else GroupStatus.COMPLETED)

    @rule(task_set=st.sampled_from(SETS))
    def begin(self, task_set: str) -> None:
        self.draw(task_set)

    def draw(self, task_set: str) -> Known:
        plan = self.plans[task_set]
        if plan:
            draw = plan.pop(0)
        else:
            draw, self.next[task_set] = self.next[task_set], self.next[task_set] + 1
        started = self.runner.run(self.buffer.draw(task_set, draw, TASK, self.version))
        self.known.append(Known(task_set, draw, started, since=self.version, newest=self.version))
        return self.known[-1]

    @rule(task_set=st.sampled_from(SETS), status=GOES_ON)
    def take_up(self, task_set: str, status: GroupStatus) -> None:
        waiting = sorted(self.of(task_set, status), key=lambda group: group.age)
        started = self.runner.run(self.buffer.take_up(task_set, status, self.version))
        if not waiting:
            assert started is None
            return
        group = waiting[0]
        assert started is not None
        assert (started.row.draw, started.row.expiries) == (group.draw, group.expiries)
        stored = {*group.tokens, *group.partial}
        assert {rollout.key.member for rollout in started.stored} == stored
        assert started.first_attempts == {m: count - (m in stored) for m, count in group.attempts.items()}
        group.started, group.status, group.since = started, GroupStatus.PENDING, self.version

    @rule(data=st.data(), member=st.integers(0, 1), partial=st.booleans())
    def put(self, data: st.DataObject, member: int, partial: bool) -> None:
        pending = [g for g in self.known if g.status is GroupStatus.PENDING and member not in g.tokens]
        if not pending:
            return
        self.store(data.draw(st.sampled_from(pending), label="group"), member, partial)

    def store(self, group: Known, member: int, partial: bool) -> None:
        goes_on = member in group.partial
        attempt = group.attempts.get(member, 0) - goes_on
        version = group.partial[member] if goes_on else self.version
        make = make_partial if partial else make_rollout
        rollout = make(group.draw, member, attempt, version=version, task_set=group.task_set)
        self.runner.run(self.buffer.put(group.started.row, rollout))
        group.partial.pop(member, None)
        (group.partial if partial else group.tokens)[member] = version
        group.attempts[member] = attempt + 1
        group.newest = max(group.newest, version)

    @rule(data=st.data(), status=ENDS)
    def settle(self, data: st.DataObject, status: GroupStatus) -> None:
        whole = status is not GroupStatus.ABORTED
        pending = [g for g in self.known if g.status is GroupStatus.PENDING and not (whole and g.partial)]
        if not pending:
            return
        self.end(data.draw(st.sampled_from(pending), label="group"), status)

    def end(self, group: Known, status: GroupStatus) -> None:
        self.runner.run(self.buffer.settle(group.started.row, status))
        group.status = status
        if status is GroupStatus.COMPLETED:
            self.expire_in_model(self.due)

    @rule()
    def train(self) -> None:
        self.version += 1

    @rule(ahead=st.integers(1, 2))
    def expire(self, ahead: int) -> None:
        step = self.version + ahead
        self.due = max(self.due, step)
        self.runner.run(self.buffer.expire(step))
        self.expire_in_model(step)

    def expire_in_model(self, step: int) -> None:
        due = [
            group
            for group in self.known
            if group.status is GroupStatus.COMPLETED
            and self.policy.stale is Stale.RETRY
            and group.age[0] + self.horizon < step
            and group.expiries < self.policy.max_expiries
        ]
        for group in due:
            group.status, group.tokens, group.partial = GroupStatus.EXPIRED, {}, {}
            group.expiries += 1

    @rule(most=st.integers(1, 3))
    def take(self, most: int) -> None:
        step = self.version + 1
        self.expire(1)
        wanted = {name: min(most, self.buffer.ready(name, step)) for name in SETS}
        groups = self.runner.run(self.buffer.take(step, wanted))
        for name, count in wanted.items():
            oldest = sorted(self.of(name, GroupStatus.COMPLETED), key=lambda group: group.age)[:count]
            mine = [group for group in groups if group.task_set == name]
            assert [group.draw for group in mine] == [group.draw for group in oldest]
            for group, known in zip(mine, oldest, strict=True):
                self.check_age(group, known, step)
                known.status, known.step = GroupStatus.CONSUMED, step
        self.taken += groups

    def check_age(self, group: Group, known: Known, step: int) -> None:
        young = [version for version in known.tokens.values() if version + self.horizon >= step]
        assert group.oldest_version == min(young, default=None)
        assert len(group.rollouts) == len(known.tokens), "nobody is dropped for being slow"

    @precondition(lambda self: self.taken)
    @rule()
    def consume(self) -> None:
        steps = {(known.task_set, known.draw): known.step for known in self.known if known.step is not None}
        for step in sorted({steps[group.task_set, group.draw] for group in self.taken}):
            groups = [group for group in self.taken if steps[group.task_set, group.draw] == step]
            self.runner.run(self.buffer.consume(groups, step))
        self.taken = []

    @rule(back=st.integers(0, 3))
    def resume(self, back: int) -> None:
        """A kill: only the storage is left, and a checkpoint that may be some steps old."""
        self.version = max(0, self.version - back)
        resumed = StoredBuffer.resume(self.storage, self.policy, SETS, step=self.version)
        self.buffer, plans = self.runner.run(resumed)
        self.due = 0
        not_recorded = {(group.task_set, group.draw) for group in self.taken}
        for group in self.known:
            undone = group.step is not None and (
                group.step > self.version or (group.task_set, group.draw) in not_recorded
            )
            if undone:
                group.status, group.step = GroupStatus.COMPLETED, None
            if group.status is not GroupStatus.CONSUMED and group.newest > self.version:
                group.status = GroupStatus.ROLLED_BACK
            if group.status is GroupStatus.PENDING:
                group.status = GroupStatus.ABORTED
        self.taken = []
        gone = [group for group in self.known if group.status is GroupStatus.ROLLED_BACK]
        self.over += gone
        self.known = [group for group in self.known if group.status is not GroupStatus.ROLLED_BACK]
        for group in self.known:
            group.since = group.started.row.version
        self.plans = {name: list(plan.redraw) for name, plan in plans.items()}
        self.next = {name: plan.next_draw for name, plan in plans.items()}
        for name in SETS:
            drawn = {group.draw for group in self.known if group.task_set == name}
            assert sorted([*drawn, *self.plans[name]]) == list(range(self.next[name])), "no draw is skipped (D1)"

    @invariant()
    def every_group_is_counted_where_it_stands(self) -> None:
        for name in SETS:
            for status in GroupStatus:
                standing = [group for group in [*self.known, *self.over] if group.task_set == name]
                assert self.buffer.count(name, status) == sum(group.status is status for group in standing)

    @invariant()
    def what_is_ready_and_what_is_waited_for(self) -> None:
        bounds = {}
        for name in SETS:
            of_pending = [
                min(group.since, group.since if group.oldest is None else group.oldest)
                for group in self.of(name, GroupStatus.PENDING)
            ]
            of_aborted = [group.oldest for group in self.of(name, GroupStatus.ABORTED) if group.oldest is not None]
            bounds[name] = min([*of_pending, *of_aborted], default=None)
        step = self.version + 1
        waits = self.policy.stale is Stale.WAIT
        blocked = waits and any(bound is not None and bound + self.horizon <= step for bound in bounds.values())
        for name in SETS:
            ages, bound = [group.age[0] for group in self.of(name, GroupStatus.COMPLETED)], bounds[name]
            in_turn = [age for age in ages if not waits or bound is None or age <= bound]
            assert self.buffer.ready(name, step) == (0 if blocked else len(in_turn))


# Shrinking a history takes minutes, and a history is readable as it is.
UNSHRUNK = set(Phase) - {Phase.shrink, Phase.explain}
WALK = settings(max_examples=50, stateful_step_count=25, deadline=None, phases=UNSHRUNK)
Walk.TestCase.settings = WALK
test_the_buffer_walks_like_its_model = Walk.TestCase


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestForLong(Walk.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(WALK, max_examples=500)
