"""Finds the rollouts of a run to show. If there are none, the error says what there is instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from loopwright.errors import RunError
from loopwright.runs.stored_run import Evaluation, StoredRun
from loopwright.types import GroupStatus, Rollout, RolloutKey


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for. `best` True or False orders by reward; None keeps the order of the run. With `status`,
    groups in that status, whichever step they were drawn for."""

    step: int | None = None
    evaluation: bool = False
    task: str | None = None
    key: RolloutKey | None = None
    best: bool | None = None
    limit: int = 5
    status: GroupStatus | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A rollout and where it was."""

    where: str
    rollout: Rollout


def find(run: StoredRun, wanted: Wanted) -> list[Found]:
    """At least one rollout, and at most `limit`; without --step those of the last step, or of the task's last steps."""
    if wanted.key is not None and not wanted.evaluation:
        rollout = run.find(wanted.key)
        return [Found("train", rollout)] if rollout else _refuse_key(wanted.key)
    if wanted.status is not None:
        return _in_status(run, wanted.status, wanted)
    steps = _steps(run, wanted)
    matching = (found for step in steps for found in _at(run, step, wanted.evaluation) if _matches(found, wanted))
    chosen = list(islice(_ordered(matching, wanted.best), wanted.limit))
    if chosen:
        return chosen
    if wanted.key is not None:
        return _refuse_key(wanted.key)
    raise _no_such_task(run, steps, wanted)


def _in_status(run: StoredRun, status: GroupStatus, wanted: Wanted) -> list[Found]:
    """The rollouts of groups in a status. Groups that were not trained belong to no step."""
    matching = (Found(status, rollout) for rollout in run.rollouts_in(status))
    chosen = list(islice(_ordered((f for f in matching if _matches(f, wanted)), wanted.best), wanted.limit))
    if chosen:
        return chosen
    totals = {each: sum(counts[each] for counts in run.counts().values()) for each in GroupStatus}
    there = ", ".join(f"{count} {each}" for each, count in totals.items() if count)
    of_task = f" of task {wanted.task!r}" if wanted.task else ""
    raise RunError(
        f"no group{of_task} is {status}",
        remedy=f"the run has the groups: {there}" if there else "wait for its first groups",
    )


def _steps(run: StoredRun, wanted: Wanted) -> Sequence[int]:
    """The steps to look at, newest first."""
    kind = "evaluated" if wanted.evaluation else "trained"
    known = sorted({one.step for one in run.evaluations()} if wanted.evaluation else run.steps())
    if not known:
        raise RunError(f"nothing has been {kind} yet", remedy=_instead(run, wanted.evaluation))
    if wanted.step is not None and wanted.step not in known:
        raise RunError(f"step {wanted.step} has not been {kind}", remedy=f"choose one of the steps {_listed(known)}")
    if wanted.step is not None:
        return [wanted.step]
    return known[::-1] if wanted.task or wanted.key else known[-1:]


def _at(run: StoredRun, step: int, evaluation: bool) -> Iterator[Found]:
    if not evaluation:
        yield from (Found(f"step {step}", rollout) for rollout in run.rollouts(step))
        return
    for one in run.evaluations():
        if one.step == step:
            yield from (Found(_place(one), rollout) for rollout in run.eval_rollouts(*one))


def _place(one: Evaluation) -> str:
    return f"eval {one.mode}, {f'after step {one.step}' if one.step else 'before training'}"


def _matches(found: Found, wanted: Wanted) -> bool:
    rollout = found.rollout
    return wanted.task in (None, rollout.task.id) and wanted.key in (None, rollout.key)


def _ordered(found: Iterable[Found], best: bool | None) -> Iterable[Found]:
    """Order by reward if the user asked for it. Rollouts without a reward come last."""
    if best is None:
        return found
    sign = -1 if best else 1

    def rank(one: Found) -> tuple[bool, float]:
        score = one.rollout.score
        return score is None, 0.0 if score is None else sign * score

    return sorted(found, key=rank)


def _instead(run: StoredRun, evaluation: bool) -> str:
    if evaluation:
        return "add an `eval` section to the config, or leave out --eval"
    if run.evaluations():
        return "wait for the first step, or look at the evaluation with --eval"
    return "wait for the first step, or look at one rollout with --key"


def _refuse_key(key: RolloutKey) -> list[Found]:
    raise RunError(f"there is no rollout {key}", remedy="`loopwright show RUN` names the rollouts that it shows")


def _no_such_task(run: StoredRun, steps: Sequence[int], wanted: Wanted) -> RunError:
    ids = dict.fromkeys(found.rollout.task.id for found in _at(run, steps[0], wanted.evaluation))
    where = f"at step {steps[0]}" if len(steps) == 1 else "in any step"
    return RunError(
        f"there is no task {wanted.task!r} {where}",
        remedy=f"step {steps[0]} has the tasks {_listed(list(ids))}",
    )


def _listed(values: Sequence[object]) -> str:
    """All of a few values, or the first and the last of many."""
    if len(values) <= 12:
        return ", ".join(map(str, values))
    return f"{', '.join(map(str, values[:6]))}, ... {', '.join(map(str, values[-3:]))} ({len(values)} in all)"
