"""The permanent lines of the console, as pure functions. A missing metric is left out of the line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from loopwright.core.duration import duration
from loopwright.types import EvalMode, Failed, FailureCause, Rollout

BLOCKS = "▁▂▃▄▅▆▇█"
TREND = 12
"""How many steps the trend shows."""

EVAL = "eval/"
COUNTS = ("tasks", "scored", "failed", "metrics_failed")
"""The counts of an evaluation. All its other numbers are measured."""

# No metric has a mode in its name, so the last mode in the text ends the name of the task set.
_EVALUATED = re.compile(rf"{EVAL}(?P<task_set>.+)/(?P<mode>{'|'.join(EvalMode)})/(?P<name>.+)")


@dataclass(slots=True)
class PhaseTally:
    """The rollouts of one phase so far. Failed attempts are counted separately, because they have no reward (R2)."""

    rewards: list[float] = field(default_factory=list)
    failed: int = 0
    seen: set[tuple[str, int, int]] = field(default_factory=set)

    def add(self, rollout: Rollout) -> None:
        # A retry is another attempt at the same rollout, so it is not counted again.
        self.seen.add((rollout.key.task_set, rollout.key.draw, rollout.key.member))
        if rollout.score is not None:
            self.rewards.append(rollout.score)
        elif isinstance(rollout.reward, Failed):
            self.failed += 1

    def __str__(self) -> str:
        parts = [f"reward {sum(self.rewards) / len(self.rewards):.3f}"] if self.rewards else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts)


def sparkline(values: Sequence[float]) -> str:
    """One block character per value. If all values are between 0 and 1, that is the scale, so that noise does not look
    like a trend."""
    if not values:
        return ""
    low, high = min(0.0, *values), max(1.0, *values)
    if low < 0.0 or high > 1.0:
        low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def step_line(step: int, steps: int, metrics: Mapping[str, float], rewards: Sequence[float]) -> Text:
    """The line of one step. `rewards` are those of the last steps, with this one."""
    width = len(str(steps))
    line = Text.assemble((f"step {step:>{width}}/{steps}", "bold"))
    if "reward/mean" in metrics:
        line.append(f"  reward {metrics['reward/mean']:6.3f} ", style="not bold")
        line.append(f"{sparkline(rewards[-TREND:]):<{TREND}}", style="cyan")
    for text, style in _remarks(metrics):
        line.append(f"  {text}", style=style)
    return line


def _remarks(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    if "response/tokens" in metrics:
        yield f"{metrics['response/tokens']:6.1f} tokens", ""
    if cut := metrics.get("response/truncated"):
        yield f"{cut:.0%} cut", "yellow"
    failures = {cause: int(metrics.get(f"failures/{cause}", 0)) for cause in FailureCause}
    if any(failures.values()):
        yield "failed: " + ", ".join(f"{count} {cause}" for cause, count in failures.items() if count), "red"
    if lost := int(metrics.get("groups/failed", 0)):
        yield f"{lost} {'group' if lost == 1 else 'groups'} given up", "red"
    if dropped := int(metrics.get("groups/filtered", 0)):
        yield f"{dropped} {'group' if dropped == 1 else 'groups'} filtered", "yellow"
    if restarts := int(metrics.get("engine/restarts", 0)):
        yield f"engine restarted {restarts} x", "red"
    if masked := metrics.get("staleness/masked"):
        yield f"{masked:.0%} too old", "yellow"
    if age := metrics.get("staleness/mean"):
        yield f"staleness {age:.1f}", "dim"
    for name, label in (("time/rollout", "rollouts"), ("time/wait", "waited"), ("time/train", "training")):
        if name in metrics:
            yield f"{label} {duration(metrics[name])}", "dim"


def evaluations(metrics: Mapping[str, float]) -> dict[tuple[str, str], dict[str, float]]:
    """Split names like `eval/<task set>/<mode>/<name>`. Task sets and metrics may have slashes in their names."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for metric, value in metrics.items():
        if place := _EVALUATED.fullmatch(metric):
            found.setdefault((place["task_set"], place["mode"]), {})[place["name"]] = value
    return found


def measured(numbers: Mapping[str, float]) -> dict[str, float]:
    """The measured numbers of one evaluation besides the mean reward, without counts and standard errors."""
    return {
        name: value
        for name, value in numbers.items()
        if name not in ("reward", *COUNTS) and not name.endswith(("/tasks", "/stderr"))
    }


def eval_line(step: int, place: tuple[str, str], numbers: Mapping[str, float], before: float | None) -> Text:
    """The line of one evaluation. `before` is the reward of the first evaluation."""
    task_set, mode = place
    when = f"after step {step}" if step else "before training"
    line = Text.assemble((f"eval {task_set}, {mode}", "bold magenta"))
    line.append(f", {when}:")
    if "reward" in numbers:
        line.append(f" reward {numbers['reward']:.3f}")
        if before is not None:
            line.append(f" ({numbers['reward'] - before:+.3f})")
    for name, value in measured(numbers).items():
        line.append(f"  {name} {value:.3f}")
    if "scored" in numbers:
        line.append(f"  {int(numbers['scored'])} scored", style="dim")
    if failed := int(numbers.get("failed", 0)):
        line.append(f"  {failed} failed", style="red")
    if missing := int(numbers.get("metrics_failed", 0)):
        line.append(f"  {missing} {'metric' if missing == 1 else 'metrics'} failed", style="red")
    return line
