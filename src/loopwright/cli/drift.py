"""`loopwright drift`: what re-tokenising recorded conversations would get wrong, as a number and a token diff."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.runs import existing_run
from loopwright.cli.tokens import visible
from loopwright.core.drift import Drift, Mismatch, total
from loopwright.errors import DataError
from loopwright.ports import Renderer
from loopwright.types import Thinking

if TYPE_CHECKING:
    from loopwright.build.drift import Measured


def drift(
    model: Annotated[str, typer.Option("--model", help="`smollm2`, a folder, or a Hugging Face name.")],
    transcript: Annotated[
        Path,
        typer.Option(
            "--transcript",
            help="A file of JSON lines (`messages`, or those of `loopwright rollout --jsonl`), or the folder of a run.",
        ),
    ],
    renderer: Annotated[
        str, typer.Option("--renderer", help="As model.renderer: auto, template or a family.")
    ] = "auto",
    thinking: Annotated[Thinking, typer.Option("--thinking", help="As gateway.thinking.")] = Thinking.KEEP,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Count the tokens that would differ if recorded conversations were rendered again instead of kept as sampled.

    Nothing is sampled: only the model's tokenizer is read.
    """
    if transcript.is_dir():
        existing_run(transcript)
    elif not transcript.exists():
        raise DataError(f"there is no {transcript}", remedy="name a file of JSON lines, or the folder of a run")
    from loopwright.build.drift import measure_drift, tokenizer_renderer

    chosen = tokenizer_renderer(model, models_folder(), renderer, thinking)
    measured = list(measure_drift(transcript, chosen))
    if as_json:
        typer.echo(json.dumps(_facts(measured, chosen), indent=1))
    else:
        _print(measured, chosen)


def _facts(measured: Sequence[Measured], renderer: Renderer) -> dict[str, object]:
    results = [one.result for one in measured if one.result]
    whole = total(result.drift for result in results)
    return {
        "renderer": renderer.name,
        "conversations": len(measured),
        "not_compared": len(measured) - len(results),
        "chains": sum(result.chains for result in results),
        "forks": sum(result.forks for result in results),
        "unspelled": sum(result.unspelled for result in results),
        "tokens": whole.tokens,
        "wrong": sum(result.drift.wrong for result in results),
        "lost": whole.lost,
        "invented": whole.invented,
        "lines": [
            {"line": one.line, "wrong": one.result.drift.wrong, "first": _first(one.result.drift, renderer)}
            for one in measured
            if one.result and one.result.drift.first
        ],
    }


def _first(drift: Drift, renderer: Renderer) -> dict[str, object] | None:
    if drift.first is None:
        return None
    words = {name: renderer.pieces(getattr(drift.first, name)) for name in ("before", "recorded", "naive")}
    return {**asdict(drift.first), "pieces": words}


def _print(measured: Sequence[Measured], renderer: Renderer) -> None:
    facts = _facts(measured, renderer)
    typer.echo(f"renderer   {facts['renderer']}")
    typer.echo(f"recorded   {facts['conversations']} conversations, {facts['chains']} chains, {facts['forks']} forks")
    if facts["not_compared"]:
        typer.echo(f"           {facts['not_compared']} not compared: no single chain of replies")
    if facts["unspelled"]:
        typer.echo(f"           {facts['unspelled']} replies that this template never writes so: give their ids")
    typer.echo(f"tokens     {facts['tokens']} from the first reply on")
    typer.echo(f"wrong      {facts['wrong']} if rendered again ({facts['lost']} lost, {facts['invented']} invented)")
    drifted = ((one.line, one.result.drift) for one in measured if one.result)
    for line, drift in drifted:
        if drift.first is not None:
            typer.echo(f"\nline {line}: {drift.wrong} wrong, first at token {drift.first.place}")
            _print_diff(drift.first, renderer)
            break


def _print_diff(first: Mismatch, renderer: Renderer) -> None:
    for label, ids in (("  both     ", first.before), ("- recorded ", first.recorded), ("+ naive    ", first.naive)):
        pieces = " ".join(f"⟦{visible(piece).replace(chr(10), '↵')}⟧" for piece in renderer.pieces(ids))
        typer.echo(f"{label} {pieces or '(ends here)'}")
