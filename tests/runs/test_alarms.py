"""Each alarm: when it is raised, since when, and when it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.runs.alarms import Alarm, AlarmKind, Vitals, alarms
from loopwright.types import FailureCause

STEPS = range(1, 31)
SOUND: Mapping[str, Mapping[int, float]] = {
    "learner/mismatch_mean": dict.fromkeys(STEPS, 0.004),
    "response/tokens": dict.fromkeys(STEPS, 100.0),
    "response/truncated": dict.fromkeys(STEPS, 0.1),
    "reward/mean": {step: 0.5 + 0.02 * (step % 3) for step in STEPS},
    "groups/trained": dict.fromkeys(STEPS, 8.0),
    "groups/filtered": dict.fromkeys(STEPS, 2.0),
    "groups/size": dict.fromkeys(STEPS, 8.0),
    "failures/judge": dict.fromkeys(STEPS, 1.0),
}
TIMES = [60.0 * step for step in STEPS]
WELL = Vitals(SOUND, TIMES, TIMES[-1] + 30, alive=True, step=30)


def since(step: int, before: float, after: float) -> dict[int, float]:
    return {each: after if each >= step else before for each in STEPS}


def changed(**series: Mapping[int, float]) -> Vitals:
    return replace(WELL, series={**SOUND, **{name.replace("__", "/"): values for name, values in series.items()}})


def only(vitals: Vitals) -> Alarm:
    (found,) = alarms(vitals)
    return found


def test_a_sound_run_has_no_alarm() -> None:
    assert alarms(WELL) == ()
    assert alarms(Vitals({})) == ()


@pytest.mark.parametrize(
    ("series", "kind", "first", "severe"),
    [
        ({"failures__judge": since(27, 0, 9)}, AlarmKind.FAILURES, 27, False),
        ({"failures__infra": since(20, 0, 200)}, AlarmKind.FAILURES, 20, True),
        ({"groups__filtered": since(21, 2, 12)}, AlarmKind.NO_SIGNAL, 17, False),
        ({"response__truncated": since(25, 0, 0.3)}, AlarmKind.TRUNCATED, 25, False),
        ({"response__truncated": since(25, 0, 0.6)}, AlarmKind.TRUNCATED, 25, True),
        ({"learner__mismatch_mean": since(22, 0.004, 0.02)}, AlarmKind.MISMATCH, 22, False),
        ({"learner__mismatch_mean": since(22, 0.004, 0.2)}, AlarmKind.MISMATCH, 22, True),
        ({"response__tokens": since(18, 100, 160)}, AlarmKind.LENGTHS, 18, False),
        ({"response__tokens": since(18, 100, 60)}, AlarmKind.LENGTHS, 18, False),
        ({"reward__mean": since(28, 0.5, 0.9)}, AlarmKind.REWARD, 28, False),
    ],
)
def test_each_rule_says_since_when(
    series: dict[str, dict[int, float]], kind: AlarmKind, first: int, severe: bool
) -> None:
    found = only(changed(**series))
    assert (found.kind, found.severe) == (kind, severe)
    assert found.since is not None
    assert abs(found.since - first) <= 4, "a share is taken over five steps"
    assert found.numbers
    assert found.rule


def test_a_small_mismatch_may_grow() -> None:
    assert alarms(changed(learner__mismatch_mean=since(20, 1e-6, 1e-4))) == ()


def test_what_is_over_is_no_alarm() -> None:
    over = {step: 0.9 if 5 <= step < 20 else 0.0 for step in STEPS}
    assert alarms(changed(response__truncated=over)) == ()


@pytest.mark.parametrize(("waited", "raised"), [(1000, False), (1799, False), (1801, True)])
def test_a_stall_is_half_an_hour_at_least(waited: float, raised: bool) -> None:
    found = alarms(replace(WELL, now=TIMES[-1] + waited))
    assert bool(found) is raised
    assert alarms(replace(WELL, now=TIMES[-1] + waited, alive=False)) == (), "a run that has ended does not stall"


def test_a_stall_of_a_slow_run_is_six_steps_of_its_own() -> None:
    slow = replace(WELL, times=[3600.0 * step for step in STEPS])
    assert alarms(replace(slow, now=slow.times[-1] + 5 * 3600)) == ()
    assert only(replace(slow, now=slow.times[-1] + 7 * 3600)).kind is AlarmKind.STALL


@pytest.mark.parametrize("times", [[], [1000.0]])
def test_a_run_without_a_usual_step_stands_still_if_nothing_ends(times: list[float]) -> None:
    young = Vitals({}, times, now=10_000.0, alive=True, step=len(times))
    assert only(replace(young, opened=10_000 - 1801)).kind is AlarmKind.STALL
    assert f"step {len(times) + 1}" in only(young).numbers
    assert alarms(replace(young, opened=10_000 - 1799)) == (), "it was opened a moment ago"
    assert alarms(replace(young, ended=10_000 - 1799)) == (), "a rollout has ended a moment ago"
    assert alarms(replace(young, alive=False)) == ()


def test_engines_that_were_lost_lately() -> None:
    assert alarms(replace(WELL, lost=[3, 20])) == ()
    once, often = only(replace(WELL, lost=[3, 25])), only(replace(WELL, lost=[24, 25, 26]))
    assert (once.since, once.severe, often.severe) == (25, False, True)


def test_groups_that_were_trained_without_signal_count() -> None:
    found = only(replace(WELL, equal={"train": since(21, 0, 7)}))
    assert found.kind is AlarmKind.NO_SIGNAL


def test_a_fault_of_one_task_set_is_told_of_it_alone() -> None:
    of_sets = {f"{name}/{end}": values for name, values in SOUND.items() for end in ("a", "b")}
    broken = {**SOUND, **of_sets, "failures/judge": since(20, 0, 20), "failures/judge/b": since(20, 0, 20)}
    broken["failures/judge/a"] = dict.fromkeys(STEPS, 0.0)
    found = only(replace(WELL, series=broken, task_sets=("a", "b")))
    assert (found.task_set, found.cause) == ("b", FailureCause.JUDGE)
    both = {**broken, "failures/judge/a": since(20, 0, 20)}
    assert only(replace(WELL, series=both, task_sets=("a", "b"))).task_set is None


@pytest.mark.parametrize(
    ("case", "numbers"),
    [
        # One of four members of each group fails, and the others are trained.
        ({"trained": 4, "failed": 0, "size": 3, "judge": 4}, "20 of 80 attempts"),
        # One of four groups fails, by two of its members: the two that were scored are attempts too.
        ({"trained": 3, "failed": 1, "size": 4, "judge": 2}, "10 of 80 attempts"),
        # Each group has a member that fails, and is made again.
        ({"trained": 4, "failed": 0, "size": 4, "judge": 4}, "20 of 100 attempts"),
        # All groups fail, so that no size is known.
        ({"trained": 0, "failed": 4, "size": 0, "judge": 16}, "80 of 80 attempts"),
    ],
)
def test_attempts_are_those_that_were_made(case: dict[str, float], numbers: str) -> None:
    series: dict[str, Mapping[int, float]] = {
        "groups/trained": since(26, 4, case["trained"]),
        "groups/failed": since(26, 0, case["failed"]),
        "groups/size": since(26, 4, case["size"]) if case["size"] else dict.fromkeys(range(1, 26), 4.0),
        "failures/judge": since(26, 0, case["judge"]),
    }
    found = only(Vitals(series, TIMES, samples=4))
    assert found.numbers.startswith(numbers)


def test_a_fault_that_comes_and_goes_says_when_it_came_first() -> None:
    comes = {step: 40.0 if step in (3, 4, 12, 29) else 0.0 for step in STEPS}
    found = only(changed(failures__judge=comes))
    assert (found.since, found.numbers.split("; ")[1:]) == (29, ["first in step 3, 160 in all"])
    assert ";" not in only(changed(failures__judge=since(29, 0, 20))).numbers


VALUES = st.dictionaries(st.integers(1, 60), st.floats(0, 1e6), max_size=40)


@given(st.fixed_dictionaries(dict.fromkeys(SOUND, VALUES)), st.floats(0, 1e9), st.booleans())
def test_no_run_breaks_the_rules(series: dict[str, dict[int, float]], now: float, alive: bool) -> None:
    for found in alarms(Vitals(series, TIMES, now, alive, 60, [1, 59], {"t": series["reward/mean"]}, ("t",))):
        assert found.since is None or found.since >= 1


def test_a_run_that_was_resumed_a_moment_ago_does_not_stand_still() -> None:
    times = [60.0 * step for step in range(1, 31)]
    night = replace(WELL, times=times, now=times[-1] + 40_000, alive=True)
    assert only(night).kind is AlarmKind.STALL
    assert alarms(replace(night, opened=night.now - 60)) == ()


def test_one_calm_step_does_not_move_the_beginning_of_a_drift() -> None:
    lengths = since(18, 100, 200)
    assert only(changed(response__tokens={**lengths, 30: 100.0})).since == 18
    assert only(changed(response__tokens={**lengths, 24: 100.0})).since == 18
