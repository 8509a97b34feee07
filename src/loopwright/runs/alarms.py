"""What is wrong with a run, and since when: rules over its metrics, as pure functions.

A rule looks at the latest steps. It says what it found in numbers, so that a person can judge whether it is right.
What is wrong in one task set alone is told of that task set.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from loopwright.runs.trends import FIRST, RECENT, Series, Share, SinceStart, added
from loopwright.types import FailureCause

STALL_TIMES, STALL_SECONDS = 6, 1800.0
FAILED_SHARE, BAD_SHARE = 0.05, 0.5
NO_SIGNAL_SHARE = 0.5
TRUNCATED_SHARE = 0.25
MISMATCH_TIMES, MISMATCH_LEAST = 2.0, 0.005
LENGTH_TIMES = 1.5
JUMP_SHARE = 0.1
LOST_RECENT, LOST_OFTEN = 10, 3


class AlarmKind(StrEnum):
    """What an alarm is about, the most urgent first."""

    STALL = "stall"
    FAILURES = "failures"
    ENGINES = "engines"
    NO_SIGNAL = "no_signal"
    TRUNCATED = "truncated"
    MISMATCH = "mismatch"
    REWARD = "reward"
    LENGTHS = "lengths"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong. `since` is the first step that shows it, `step` the one to look at."""

    kind: AlarmKind
    title: str
    numbers: str
    rule: str
    since: int | None = None
    step: int | None = None
    severe: bool = False
    task_set: str | None = None
    cause: FailureCause | None = None
    rose: bool = True


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """What ended of one task set since the last step: no metric says it before the next one is trained. `failed`
    counts the failed ones of the `attempts` by cause."""

    attempts: int = 0
    failed: Mapping[FailureCause, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the rules look at. `equal` are groups that were trained although all their rewards are equal, by task set
    and step."""

    series: Mapping[str, Series]
    times: Sequence[float] = ()
    """When each step ended."""
    now: float = 0.0
    alive: bool = False
    step: int = 0
    """The last one."""
    lost: Sequence[int] = ()
    """The step of each engine that was lost."""
    equal: Mapping[str, Series] = field(default_factory=dict)
    task_sets: tuple[str, ...] = ()
    samples: int = 0
    """How many members a group is drawn with."""
    opened: float = 0.0
    """When the process began that works on the run."""
    ended: float = 0.0
    """When a piece of work or a rollout ended last, if there is no usual step yet."""
    unfinished: Mapping[str, UnfinishedStep] = field(default_factory=dict)
    """By task set."""

    def of(self, name: str, task_set: str | None) -> Series:
        return self.series.get(name if task_set is None else f"{name}/{task_set}", {})


Rule = Callable[[Vitals, str | None], Iterator[Alarm]]


def alarms(vitals: Vitals) -> tuple[Alarm, ...]:
    """All alarms, the severe ones first."""
    found = [*_stall(vitals), *_lost_engines(vitals), *_mismatch(vitals)]
    for rule in (_failures, _no_signal, _truncated, _lengths, _reward_jumps):
        found += _where(rule, vitals)
    order = list(AlarmKind)
    return tuple(sorted(found, key=lambda one: (not one.severe, order.index(one.kind), one.task_set or "")))


def _where(rule: Rule, vitals: Vitals) -> list[Alarm]:
    """The alarms of the whole run, or of the task sets if only some of them show it."""
    own = {name: list(rule(vitals, name)) for name in vitals.task_sets}
    of_sets = [replace(one, task_set=name, title=f"{one.title}, in {name}") for name in own for one in own[name]]
    return of_sets if of_sets and not all(own.values()) else list(rule(vitals, None))


def stall_seconds(usual: float) -> float:
    """After how long without a step a run stands still, if a step usually takes `usual` seconds."""
    return max(STALL_SECONDS, STALL_TIMES * usual)


def _stall(vitals: Vitals) -> Iterator[Alarm]:
    if not vitals.alive:
        return
    if len(vitals.times) < 2:
        yield from _stall_without_steps(vitals)
        return
    usual = statistics.median(after - before for before, after in zip(vitals.times, vitals.times[1:], strict=False))
    # A run that is resumed stood still on purpose.
    waited, most = vitals.now - max(vitals.times[-1], vitals.opened), stall_seconds(usual)
    if waited > most:
        yield Alarm(
            AlarmKind.STALL,
            "The run stands still",
            f"no step for {waited / 60:.0f} minutes; a step usually takes {usual:.0f} s",
            f"no step for {STALL_TIMES} times the usual, and at least {STALL_SECONDS / 60:.0f} minutes",
            severe=True,
        )


def _stall_without_steps(vitals: Vitals) -> Iterator[Alarm]:
    """There is no usual step yet to compare with, so whatever ends counts."""
    waited = vitals.now - max(vitals.ended, vitals.opened)
    if waited > STALL_SECONDS:
        yield Alarm(
            AlarmKind.STALL,
            "The run stands still",
            f"nothing has ended for {waited / 60:.0f} minutes, no rollout and no other work, in step {vitals.step + 1}",
            f"in the first two steps, nothing has ended for {STALL_SECONDS / 60:.0f} minutes",
            severe=True,
        )


def _lost_engines(vitals: Vitals) -> Iterator[Alarm]:
    recent = [step for step in vitals.lost if step > vitals.step - LOST_RECENT]
    if recent:
        times = "once" if len(recent) == 1 else f"{len(recent)} times"
        yield Alarm(
            AlarmKind.ENGINES,
            "An engine was lost",
            f"{times} in the last {LOST_RECENT} steps, first in step {min(recent)}; {len(vitals.lost)} in all",
            f"any engine lost in the last {LOST_RECENT} steps; severe from {LOST_OFTEN} on",
            since=min(recent),
            step=recent[-1],
            severe=len(recent) >= LOST_OFTEN,
        )


def _failures(vitals: Vitals, task_set: str | None) -> Iterator[Alarm]:
    counts = {cause: vitals.of(f"failures/{cause}", task_set) for cause in FailureCause}
    attempts = _attempts(vitals, task_set, added(counts.values()))
    begun = [one for name, one in vitals.unfinished.items() if task_set in (None, name) and one.attempts]
    under_way, whole = vitals.step + 1, float(sum(one.attempts for one in begun))
    for cause, counted in counts.items():
        failed = dict(counted)
        if part := sum(one.failed.get(cause, 0) for one in begun):
            failed[under_way] = float(part)
        share = Share(failed, {**attempts, under_way: whole} if whole else attempts)
        # Thousands of attempts before do not make a step harmless in which the run has ended.
        is_end = not vitals.alive and whole > 1 and part >= BAD_SHARE * whole
        if (share.now >= FAILED_SHARE and share.part > 1) or is_end:
            numbers = f"{share.part:.0f} of {share.whole:.0f} attempts in {share.where} ({share.now:.0%})"
            if part:
                numbers += f"; {part} of {whole:.0f} in step {under_way}, which is not finished"
            # A fault that comes and goes began before the stretch that goes on now.
            begin, since = share.first, share.since(FAILED_SHARE) or share.latest
            if begin != since:
                numbers += f"; first in step {begin}, {sum(failed.values()):.0f} in all"
            yield Alarm(
                AlarmKind.FAILURES,
                f"Rollouts fail: {cause}",
                numbers,
                f"at least {FAILED_SHARE:.0%} of the attempts of the last {RECENT} steps fail for one cause, or"
                f" {BAD_SHARE:.0%} in the step in which the run has ended",
                since=since,
                step=share.latest,
                severe=share.now >= BAD_SHARE or is_end,
                cause=cause,
            )


def _attempts(vitals: Vitals, task_set: str | None, failed: Series) -> Series:
    """How many attempts the groups that ended in each step are known to have had. A group is trained without its failed
    members, the scored members of a group that failed are counted nowhere, and a member may have failed before it was
    scored."""
    scored = added(vitals.of(f"groups/{how}", task_set) for how in ("trained", "filtered"))
    groups, sizes = added([scored, vitals.of("groups/failed", task_set)]), vitals.of("groups/size", task_set)
    return {
        step: max(
            vitals.samples * groups.get(step, 0.0),
            sizes.get(step, vitals.samples) * scored.get(step, 0.0) + failed.get(step, 0.0),
        )
        for step in {*groups, *failed}
    }


def _no_signal(vitals: Vitals, task_set: str | None) -> Iterator[Alarm]:
    filtered = vitals.of("groups/filtered", task_set)
    equal = vitals.equal.get(task_set, {}) if task_set else added(vitals.equal.values())
    share = Share(added([filtered, equal]), added([filtered, vitals.of("groups/trained", task_set)]))
    if share.now >= NO_SIGNAL_SHARE:
        yield Alarm(
            AlarmKind.NO_SIGNAL,
            "Groups teach nothing",
            f"{share.part:.0f} of {share.whole:.0f} groups in {share.where} have equal rewards or were filtered"
            f" ({share.now:.0%})",
            f"at least {NO_SIGNAL_SHARE:.0%} of the groups of the last {RECENT} steps",
            since=share.since(NO_SIGNAL_SHARE),
            step=share.latest,
        )


def _truncated(vitals: Vitals, task_set: str | None) -> Iterator[Alarm]:
    cut = vitals.of("response/truncated", task_set)
    share = Share(cut, dict.fromkeys(cut, 1.0))
    if share.now >= TRUNCATED_SHARE:
        yield Alarm(
            AlarmKind.TRUNCATED,
            "Answers are cut off",
            f"{share.now:.0%} of the rollouts in {share.where} ran out of their budget",
            f"at least {TRUNCATED_SHARE:.0%} of the rollouts of the last {RECENT} steps",
            since=share.since(TRUNCATED_SHARE),
            step=share.latest,
            severe=share.now >= BAD_SHARE,
        )


def _mismatch(vitals: Vitals) -> Iterator[Alarm]:
    apart = vitals.series.get("learner/mismatch_mean", {})
    drift = SinceStart(apart)
    if drift.is_known and drift.now >= max(MISMATCH_LEAST, MISMATCH_TIMES * drift.before):
        yield Alarm(
            AlarmKind.MISMATCH,
            "Engines and trainer disagree more and more",
            f"logprobs differ by {drift.now:.2g} in {drift.where}; in the first {FIRST} steps by {drift.before:.2g}",
            f"the median of {RECENT} steps is {MISMATCH_TIMES:g} times that of the first {FIRST}, and at least"
            f" {MISMATCH_LEAST:g}",
            since=drift.since(lambda value: value >= max(MISMATCH_LEAST, MISMATCH_TIMES * drift.before)),
            step=max(list(apart)[-RECENT:], key=lambda step: apart[step]),
            severe=drift.now >= 10 * max(MISMATCH_LEAST, drift.before),
        )


def _lengths(vitals: Vitals, task_set: str | None) -> Iterator[Alarm]:
    drift = SinceStart(vitals.of("response/tokens", task_set))
    if not drift.is_known or min(drift.before, drift.now) <= 0:
        return

    def is_far(value: float) -> bool:
        return value >= LENGTH_TIMES * drift.before or value <= drift.before / LENGTH_TIMES

    if is_far(drift.now):
        longer = drift.now > drift.before
        yield Alarm(
            AlarmKind.LENGTHS,
            f"Answers become {'longer' if longer else 'shorter'}",
            f"{drift.now:.0f} tokens in {drift.where}; in the first {FIRST} steps {drift.before:.0f}",
            f"the medians of the last {RECENT} and of the first {FIRST} steps differ by a factor of {LENGTH_TIMES:g}",
            since=drift.since(is_far),
            step=drift.latest,
            rose=longer,
        )


def _reward_jumps(vitals: Vitals, task_set: str | None) -> Iterator[Alarm]:
    rewards = sorted(vitals.of("reward/mean", task_set).items())
    for place in range(len(rewards) - 1, max(FIRST, len(rewards) - FIRST) - 1, -1):
        step, value = rewards[place]
        before = [each for _, each in rewards[place - FIRST : place]]
        low, high = min(before), max(before)
        outside = max(value - high, low - value)
        if outside > max(high - low, JUMP_SHARE * max(abs(low), abs(high), abs(value))):
            yield Alarm(
                AlarmKind.REWARD,
                f"The reward has jumped {'up' if value > high else 'down'}",
                f"{value:.3g} in step {step}; the {FIRST} steps before had {low:.3g} to {high:.3g}",
                f"a step is outside of what the {FIRST} steps before had, by more than their whole range and by"
                f" {JUMP_SHARE:.0%} of its size",
                since=step,
                step=step,
                rose=value > high,
            )
            return
