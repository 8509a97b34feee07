"""Shows a run on the terminal: live bars for the present work, and one permanent line after each step.

If the output is no terminal, only the lines are written, each as soon as it is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import rich.console
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
from rich.table import Table
from rich.text import Text

from loopwright.track.console_text import EVAL, PhaseTally, eval_line, evaluations, step_line
from loopwright.track.report_data import RunSummary, duration, edges, mean
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
        self._rewards: list[float] = []
        self._first_eval: dict[tuple[str, str], float] = {}
        self._bars = _bars(self._out)
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
                self._first_eval.setdefault(place, numbers["reward"])
        trained = {name: value for name, value in metrics.items() if not name.startswith(EVAL)}
        if not trained:
            return
        if "reward/mean" in trained:
            self._rewards.append(trained["reward/mean"])
        self._print(step_line(step, self._steps, trained, self._rewards))
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
        try:
            yield
        finally:
            self._bars.remove_task(bar)
            self._phase = outer

    def on_rollout(self, rollout: Rollout) -> None:
        """Count one finished rollout, scored or failed, for the present work."""
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
    """The rewards of a phase so far. For the whole run: the time that is left."""

    def render(self, task: Task) -> Text:
        tally = task.fields.get("tally")
        if tally is not None:
            return Text(str(tally))
        return Text(f"about {duration(task.time_remaining)} left" if task.time_remaining else "", style="dim")


PROOF = re.compile(r"engine/\d+/proof_max")


def _bars(out: rich.console.Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        _Count(),
        TimeElapsedColumn(),
        _Detail(),
        console=out,
        transient=True,
        # Drawing must not take CPU time from the run, and a step may take minutes.
        refresh_per_second=4,
        speed_estimate_period=1800.0,
    )


def print_summary(
    run: RunSummary, *, finished: bool = True, command: str = "loopwright", out: rich.console.Console | None = None
) -> None:
    """Print what a run achieved, where its results are, and the next commands to run. `command` is how the user calls
    Loopwright."""
    out = out or rich.console.Console(highlight=False)
    if run.evaluations:
        out.print()
        out.print(_before_and_after(run))
    out.print()
    if not finished:
        text = "Stopped before the last step. The same command goes on from here."
        out.print(text, style="yellow", soft_wrap=True)
    for label, text in _results(run, command):
        out.print(Text.assemble((f"{label:<14}", "dim"), text), soft_wrap=True)


def _before_and_after(run: RunSummary) -> Table:
    table = Table("held-out tasks", "sampling", box=None, pad_edge=False, header_style="dim")
    for heading in ("before", "after", "change", "failed"):
        table.add_column(heading, justify="right")
    for progress in run.progress():
        before, after = progress.before, progress.after
        last = after or before
        table.add_row(
            before.task_set,
            before.mode,
            run.measure.shown(before.reward),
            Text(run.measure.shown(after.reward), style="bold") if after else "",
            run.measure.difference(before.reward, after.reward) if after else "",
            str(last.failed) if last.failed else "",
        )
    table.title = Text(f"{run.measure.capitalize()} before and after", style="bold")
    table.title_justify = "left"
    return table


def _exactness(run: RunSummary) -> Iterator[tuple[str, str]]:
    """How far the engines were from the learner: on the tokens that the trained weights themselves had sampled, and on
    the probes after weight updates."""
    tokens = run.total("learner/mismatch_tokens_s0")
    if tokens:
        fresh = [step for step in run.steps.values() if "learner/mismatch_tokens_s0" in step]
        total = sum(step["learner/mismatch_mean_s0"] * step["learner/mismatch_tokens_s0"] for step in fresh)
        yield "mismatch", f"{total / tokens:.1e} on average over {tokens:,} trained tokens of staleness 0"
    proofs = [value for step in run.steps.values() for name, value in step.items() if PROOF.fullmatch(name)]
    if proofs:
        yield "proofs", f"of {len(proofs)} weight updates, each at most {max(proofs):.1e} off"


def _results(run: RunSummary, command: str) -> Iterator[tuple[str, str]]:
    first, last = edges(run.series("reward/mean"))
    if last:
        yield (
            "train reward",
            f"{mean(first):.3f} in the first {len(first)}, {mean(last):.3f} in the last {len(last)} steps",
        )
    elif first:
        yield "train reward", f"{mean(first):.3f}"
    spent = ", ".join(f"{name} {duration(seconds)}" for name, seconds in run.phases.items() if seconds >= 1)
    yield "time", duration(run.seconds) + (f" ({spent})" if spent else "")
    if starts := run.series("time/program_start"):
        ran = mean(run.series("time/program_run"))
        yield "programs", f"{mean(starts):.1f} s to their first model call, {ran:.1f} s from there, on average"
    yield from _exactness(run)
    if run.report:
        yield "report", str(run.report)
    if run.export:
        yield "model", str(run.export)
    yield "run folder", str(run.folder)
    yield "look at it", f"{command} show {run.folder}"
    if run.steps:
        yield "talk to it", f"{command} chat {run.folder}"
