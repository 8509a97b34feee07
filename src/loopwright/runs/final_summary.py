"""What a run achieved, as it is printed when the run ends."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import rich.console
from rich.table import Table
from rich.text import Text

from loopwright.core.duration import duration
from loopwright.runs.report.data import RunSummary, edges, mean

PROOF = re.compile(r"engine/\d+/proof_max")


def print_summary(
    run: RunSummary,
    *,
    finished: bool = True,
    lost_steps: range = range(0),
    command: str = "loopwright",
    out: rich.console.Console | None = None,
) -> None:
    """Print what a run achieved, where its results are, and the next commands to run. `lost_steps` were trained by a
    learner that was lost, and have no checkpoint. `command` is how the user calls Loopwright."""
    out = out or rich.console.Console(highlight=False)
    if run.evaluations:
        out.print()
        out.print(_before_and_after(run))
    out.print()
    if not finished:
        text = f"Stopped before the last step. {where_it_goes_on(lost_steps)}"
        out.print(text, style="yellow", soft_wrap=True)
    for label, text in _results(run, command):
        out.print(Text.assemble((f"{label:<14}", "dim"), text), soft_wrap=True)


def where_it_goes_on(lost_steps: range) -> str:
    """Where the same command goes on after a run that was stopped."""
    if not lost_steps:
        return "The same command goes on from here."
    first, last = lost_steps[0], lost_steps[-1]
    what = f"Step {first} is" if first == last else f"Steps {first} to {last} are"
    where = f"goes on from step {first - 1}" if first > 1 else "begins again"
    return f"{what} lost with the learner, and the same command {where}."


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
    yield "look at it", f"{command} show {shlex.quote(str(run.folder))}"
    if run.steps:
        yield "talk to it", f"{command} chat {shlex.quote(str(run.folder))}"
