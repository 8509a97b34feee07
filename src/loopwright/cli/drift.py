"""`loopwright drift`: what re-tokenising recorded conversations would get wrong, as a number and a token diff."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.runs import existing_run
from loopwright.cli.tokens import visible
from loopwright.errors import DataError
from loopwright.types import Thinking, TokenDiff

if TYPE_CHECKING:
    from loopwright.build.drift import Measured
    from loopwright.ports import Renderer


def drift(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run.")] = None,
    transcript: Annotated[
        Path | None,
        typer.Option(
            "--transcript", help="A file of JSON lines: `messages`, or those of `loopwright rollout --jsonl`."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="For a transcript: `smollm2`, a folder, or a Hugging Face name.")
    ] = None,
    renderer: Annotated[
        str, typer.Option("--renderer", help="For a transcript, as model.renderer: auto, template or a family.")
    ] = "auto",
    thinking: Annotated[
        Thinking, typer.Option("--thinking", help="For a transcript, as gateway.thinking.")
    ] = Thinking.KEEP,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Count the tokens that would differ if recorded conversations were rendered again instead of kept as sampled.

    Nothing is sampled: only the model's tokenizer is read.
    """
    if (run is None) == (transcript is None):
        raise typer.BadParameter("name the folder of a run, or a file with --transcript")
    found, chosen = _of_run(run) if run is not None else _of_file(transcript or Path(), model, renderer, thinking)
    if as_json:
        typer.echo(json.dumps(_facts(found, chosen), indent=1))
    else:
        _print(found, chosen)


def _of_run(run: Path) -> tuple[list[Measured], Renderer]:
    folder = existing_run(run)
    from loopwright.build import run_renderer
    from loopwright.build.drift import measure_run

    chosen = run_renderer(folder)
    return list(measure_run(folder, chosen)), chosen


def _of_file(file: Path, model: str | None, renderer: str, thinking: Thinking) -> tuple[list[Measured], Renderer]:
    if not file.is_file():
        raise DataError(f"there is no file {file}", remedy="name a file of JSON lines; a run's folder goes without it")
    if model is None:
        raise typer.BadParameter("a transcript does not say whose tokens it has: name the model", param_hint="--model")
    from loopwright.build.drift import measure_file, tokenizer_renderer

    chosen = tokenizer_renderer(model, models_folder(), renderer, thinking)
    return list(measure_file(file, chosen)), chosen


def _facts(measured: Sequence[Measured], renderer: Renderer) -> dict[str, Any]:
    drifts = [one.drift for one in measured if one.drift]
    forks: Counter[str] = Counter()
    for one in measured:
        forks.update(one.forks)
    return {
        "renderer": renderer.name,
        "conversations": len(measured),
        "not_compared": len(measured) - len(drifts),
        "chains": sum(one.chains for one in measured),
        "forks": forks.total(),
        "forks_by_reason": dict(sorted(forks.items())),
        "unspelled": sum(one.unspelled for one in measured),
        "tokens": sum(drift.tokens for drift in drifts),
        "wrong": sum(drift.wrong for drift in drifts),
        "lost": sum(drift.lost for drift in drifts),
        "invented": sum(drift.invented for drift in drifts),
        "lines": [
            {"line": one.line, "wrong": one.drift.wrong, "first": asdict(one.drift.first)}
            for one in measured
            if one.drift and one.drift.first
        ],
    }


def _print(measured: Sequence[Measured], renderer: Renderer) -> None:
    facts = _facts(measured, renderer)
    reasons = ", ".join(f"{count} {reason}" for reason, count in facts["forks_by_reason"].items())
    forks = f"{facts['forks']} forks" + (f" ({reasons})" if reasons else "")
    typer.echo(f"renderer   {facts['renderer']}")
    typer.echo(f"recorded   {facts['conversations']} conversations, {facts['chains']} chains, {forks}")
    if facts["not_compared"]:
        typer.echo(f"           {facts['not_compared']} not compared: no single chain of replies")
    if facts["unspelled"]:
        typer.echo(f"           {facts['unspelled']} replies that this template never writes so: give their ids")
    typer.echo(f"tokens     {facts['tokens']} from the first reply on")
    typer.echo(f"wrong      {facts['wrong']} if rendered again ({facts['lost']} lost, {facts['invented']} invented)")
    drifted = next((one for one in measured if one.drift and one.drift.first), None)
    if drifted is not None and drifted.drift is not None and drifted.drift.first is not None:
        first = drifted.drift.first
        typer.echo(f"\nline {drifted.line}: {drifted.drift.wrong} wrong, first at token {first.place}")
        _print_diff(first)


def _print_diff(first: TokenDiff) -> None:
    sides = (("  both     ", first.before), ("- recorded ", first.recorded), ("+ naive    ", first.naive))
    for label, pieces in sides:
        shown = " ".join(f"⟦{visible(piece).replace(chr(10), '↵')}⟧" for piece in pieces)
        typer.echo(f"{label} {shown or '(ends here)'}")
