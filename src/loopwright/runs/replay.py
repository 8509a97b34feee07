"""Repeats a recorded train step: the same groups, from the same weights, give the same numbers (D3).

It only reads, so the run may be active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loopwright.errors import RunError
from loopwright.ports import Learner
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Group

COMPARED = ("loss", "grad_norm")
"""The numbers of a step that depend on every weight and every token."""

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""How much a number may differ if the run was not deterministic, because threads add numbers in any order. If the
advantages of groups cancel, the loss is near 0, and only the absolute bound is useful."""


@dataclass(frozen=True, slots=True)
class ReplayedNumber:
    """One number of a step: the recorded value and the repeated one."""

    name: str
    recorded: float
    replayed: float
    exact: bool

    @property
    def tolerance(self) -> float:
        """How much the two may differ. It is 0 if `exact`."""
        return 0.0 if self.exact else max(RELATIVE * abs(self.recorded), ABSOLUTE)

    @property
    def off(self) -> float:
        return abs(self.recorded - self.replayed)

    @property
    def equal(self) -> bool:
        return self.off <= self.tolerance


@dataclass(frozen=True, slots=True)
class Replay:
    """A step that was repeated, starting from the weights after step `start`."""

    step: int
    start: int
    comparisons: tuple[ReplayedNumber, ...]

    @property
    def equal(self) -> bool:
        return all(one.equal for one in self.comparisons)


class RecordedSteps:
    """The train steps that a run has recorded: their groups, and the numbers that are compared."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._stored = StoredRun(folder.rollouts)
        self._numbers = dict(_recorded(read_jsonl(folder.metrics)))

    def numbers(self, step: int) -> Mapping[str, float]:
        """Loss and gradient norm of a step. If the step was not recorded, the error names the recorded steps."""
        if step not in self._numbers:
            raise RunError(
                f"{self._folder.path} has not recorded a train step {step}",
                remedy=f"choose one of its steps: {spans(self._numbers)}"
                if self._numbers
                else "wait for its first train step",
            )
        return self._numbers[step]

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups that a step was trained on, in the order in which the learner got them."""
        groups = self._stored.trained(step)
        if not groups:
            raise RunError(
                f"{self._folder.rollouts} has no group that train step {step} consumed",
                remedy="replay a step whose rollouts are still there",
            )
        return groups

    def after(self, step: int) -> str:
        """The recorded steps after `step`, as text for people."""
        return spans(number for number in self._numbers if number > step)


async def replay(learner: Learner, recorded: RecordedSteps, step: int, *, exact: bool) -> Replay:
    """Train the learner from its present step up to `step`, and compare the numbers of that step."""
    expected, start = recorded.numbers(step), learner.version
    for number in range(start + 1, step + 1):
        report = await learner.step(recorded.groups(number))
    return Replay(
        step, start, tuple(ReplayedNumber(name, expected[name], report.metrics[name], exact) for name in COMPARED)
    )


def spans(steps: Iterable[int]) -> str:
    """Numbers as text, such as `1-4, 6`. Numbers without a gap become one range."""
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _recorded(records: Sequence[Mapping[str, float]]) -> Iterable[tuple[int, dict[str, float]]]:
    for record in records:
        numbers = {name: record.get(f"learner/{name}") for name in COMPARED}
        known = {name: value for name, value in numbers.items() if value is not None}
        if len(known) == len(COMPARED):
            yield int(record["step"]), known
