"""Shows a run on the terminal: its numbers and bars for the present work, live, and one permanent line after each step.

If the output is no terminal, only the lines are written, each as soon as it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import rich.console
from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from loopwright.track.console_text import EVAL, PhaseTally, eval_line, evaluations, step_line
from loopwright.track.live_numbers import LiveNumbers
from loopwright.types import Rollout

LABELS = {
    "rollout": "rollouts",
    "wait": "waiting for rollouts",
    "train": "training",
    "sync": "new weights",
    "evaluate": "evaluating",
    "checkpoint": "saving a checkpoint",
    "export": "exporting the model",
}


class _Phase(NamedTuple):
    """The present work: its bar, and the rollouts that it has produced."""

    bar: TaskID
    tally: PhaseTally


class Console:
    """A `Tracker` that draws. Use it as `with Console(...) as console`; `on_rollout` feeds the live reward.

    Without `steps` it only shows the present work. This is for commands that have no steps and print their own results.
    """

    def __init__(
        self,
        *,
        title: str,
        steps: int | None = None,
        rollouts_per_step: int | None = None,
        out: rich.console.Console | None = None,
    ) -> None:
        self._steps = steps
        self._rollouts_per_step = rollouts_per_step
        self._title = title
        self._out = out or rich.console.Console(highlight=False)
        self._rewards: dict[int, float] = {}
        self._first_eval: dict[tuple[str, str], float] = {}
        self._numbers = LiveNumbers(steps) if steps is not None else None
        self._bars = _bars(self._out, self._numbers)
        self._whole = self._bars.add_task("steps", total=steps, visible=steps is not None)
        self._phase: _Phase | None = None

    def __enter__(self) -> Console:
        steps = f"  {self._steps} steps" if self._steps is not None else ""
        self._print(Text.assemble((self._title, "bold"), (steps, "dim")))
        if self._out.is_interactive:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._out.is_interactive:
            self._bars.stop()

    def say(self, line: str) -> None:
        """Write a permanent line."""
        self._print(Text(line, style="dim"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the line of a step, or of each evaluation in `metrics`."""
        if self._steps is None:
            return
        for place, numbers in evaluations(metrics).items():
            self._print(eval_line(step, place, numbers, self._first_eval.get(place)))
            if "reward" in numbers:
                if self._numbers is not None:
                    self._numbers.evaluated(", ".join(place), numbers["reward"])
                self._first_eval.setdefault(place, numbers["reward"])
        trained = {name: value for name, value in metrics.items() if not name.startswith(EVAL)}
        if not trained:
            return
        if self._numbers is not None:
            self._numbers.trained(step, trained)
        if "reward/mean" in trained:
            # After a loss of the learner, steps come again.
            self._rewards = {one: reward for one, reward in self._rewards.items() if one < step}
            self._rewards[step] = trained["reward/mean"]
        self._print(step_line(step, self._steps, trained, list(self._rewards.values())))
        self._bars.update(self._whole, completed=step)

    @contextmanager
    def span(self, name: str, *, step: int, **facts: Any) -> Iterator[None]:
        """Show a piece of work while it runs: a bar if its rollouts are counted, otherwise a spinner."""
        outer = self._phase
        about = [str(facts[key]) for key in ("task_set", "mode") if key in facts]
        expected = {"rollout": self._rollouts_per_step, "evaluate": facts.get("rollouts")}.get(name)
        tally = PhaseTally()
        bar = self._bars.add_task(" ".join([LABELS.get(name, name), *about]), total=expected, tally=tally)
        self._phase = _Phase(bar, tally)
        if name in ("rollout", "wait"):
            # A resumed run does not begin at step 1.
            self._bars.update(self._whole, completed=step - 1)
            if self._numbers is not None:
                self._numbers.begin(step)
        try:
            yield
        finally:
            self._bars.remove_task(bar)
            self._phase = outer

    def on_rollout(self, rollout: Rollout) -> None:
        """Count one finished rollout, scored or failed, for the present work."""
        if self._numbers is not None:
            self._numbers.saw(rollout)
        if self._phase is not None:
            self._phase.tally.add(rollout)
            self._bars.update(self._phase.bar, completed=len(self._phase.tally.seen))

    def _print(self, line: Text) -> None:
        # A line stays one line also where the width is unknown, as in a file or a pipe.
        self._out.print(line, soft_wrap=not self._out.is_terminal)


class _Count(ProgressColumn):
    """`done/total`, if the total is known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:.0f}/{task.total:.0f}" if task.total else "", style="progress.download")


class _Detail(ProgressColumn):
    """The rewards of a phase so far."""

    def render(self, task: Task) -> Text:
        tally = task.fields.get("tally")
        return Text("" if tally is None else str(tally))


class _Screen(Progress):
    """The numbers of a run, and below them its bars."""

    def __init__(self, numbers: LiveNumbers | None, *columns: ProgressColumn, **options: Any) -> None:
        self._numbers = numbers
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._numbers is not None:
            for label, text in self._numbers.lines():
                line = Text.assemble((f"  {label:<12}", "dim"), text, style="red" if label == "failures" else "")
                yield Text(line.plain, spans=line.spans, style=line.style, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)


def _bars(out: rich.console.Console, numbers: LiveNumbers | None) -> Progress:
    return _Screen(
        numbers,
        SpinnerColumn(),
        # It has names of task sets, which are text and no markup.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        _Count(),
        TimeElapsedColumn(),
        _Detail(),
        console=out,
        transient=True,
        # Drawing must not take CPU time from the run, and a step may take minutes.
        refresh_per_second=4,
    )
