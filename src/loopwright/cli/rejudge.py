"""`loopwright rejudge`: score what a run has stored with another judger, and see where the two differ."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.runs import RunPath, existing_run
from loopwright.config import Loaded, load

if TYPE_CHECKING:
    from loopwright.runs.rejudge_summary import TaskSetDifference
    from loopwright.runs.rejudged_scores import Judgement, RejudgedScores
    from loopwright.runs.run_folder import RunFolder

SHOWN = 10
"""How many rollouts are shown, and how many characters of a failure."""
SHOWN_CHARACTERS = 200


def rejudge(
    run: RunPath,
    judger: Annotated[str, typer.Option("--judger", help="The name of the judger in the config.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", exists=True, dir_okay=False, help="The config that has the judger, if not the run's."),
    ] = None,
    task_set: Annotated[
        list[str] | None, typer.Option("--task-set", help="Only this task set; may be given again.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what this judger has said of the run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Score the stored rollouts of a run without sampling, and say where the scores differ.

    It works beside a run and writes into `rejudged/` of its folder only. If it is stopped, the same command goes on.
    """
    folder = existing_run(run)
    ran = _config_of(folder)
    asked = ran if config is None else load(config, (), os.environ, other_model=True)
    from loopwright.build import rejudge_run

    scores, judged = asyncio.run(rejudge_run(folder, ran, asked, judger, task_sets=task_set or (), fresh=fresh))
    _show(scores, judger, judged, as_json=as_json)


def _config_of(folder: RunFolder) -> Loaded:
    return load(folder.config, (), os.environ, base=folder.stored_base(), other_model=True)


def _show(scores: RejudgedScores, judger: str, judged: int, *, as_json: bool) -> None:
    from loopwright.runs.rejudge_summary import differences, largest

    judgements = scores.judgements().values()
    found, most = differences(judgements), largest(judgements, SHOWN)
    failures = [one for one in judgements if one.failure is not None]
    if as_json:
        facts = {
            "judged_now": judged,
            "scores": str(scores.path),
            "task_sets": [asdict(one) for one in found],
            "largest": [one.record() for one in most],
            "failures": len(failures),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(f"judger {judger!r} judged {judged:,} rollouts now, {len(judgements):,} in all\n")
    _print_table(found)
    for title, rows in (("largest differences", most), ("without a score", failures[:SHOWN])):
        if rows:
            typer.echo(f"\n{title} (`loopwright show RUN --key KEY` shows one):")
            typer.echo("\n".join(f"  {one.key}  {_told(one)}" for one in rows))
    typer.echo(f"\nscores: {scores.path}")


def _print_table(found: Sequence[TaskSetDifference]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", box=None, pad_edge=False, header_style="dim")
    for heading in ("rollouts", "before", "after", "differ", "failed", "pairs in another order"):
        table.add_column(heading, justify="right")
    for one in found:
        share = f"{one.reordered:,} of {one.pairs:,}"
        numbers = (f"{one.rollouts:,}", _number(one.before), _number(one.after), f"{one.differ:,}", f"{one.failed:,}")
        table.add_row(one.task_set, *numbers, share)
    Console(highlight=False).print(table)


def _told(one: Judgement) -> str:
    return f"{_number(one.before)} -> {(one.failure or _number(one.after))[:SHOWN_CHARACTERS]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
