"""`loopwright bench`: measure Loopwright beside its peers. The benchmarks live in the source checkout."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import loopwright
from loopwright.cli.models import models_folder
from loopwright.cli.show_errors import show_warning
from loopwright.errors import BenchError
from loopwright.models.openmp import without_our_choice

PACKAGE = "benchmarks"


def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which one; without it, all are listed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that was measured, as JSON.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Counted rounds of each side.")] = None,
    ours_only: Annotated[bool, typer.Option("--ours-only", help="Leave the peer out.")] = False,
) -> None:
    """Measure Loopwright beside its peer, and both beside what the machine could do at most."""
    checkout = find_checkout()
    catalogue = _module("catalogue", checkout)
    if name is None:
        for benchmark in catalogue.BENCHMARKS:
            typer.echo(f"{benchmark.name:<12} {benchmark.what}")
        return
    benchmark = catalogue.find(name)
    from loopwright.doctor import busy

    if (share := busy.busy_share()) is not None and share > busy.BUSY:
        show_warning(f"the machine is busy ({share:.0%} of its cores): these figures mean little")
    places = _module("setting", checkout).Places(checkout, models_folder())
    measured = asyncio.run(
        _module("harness", checkout).measure(
            benchmark,
            places,
            # Peers keep the wait policy of OpenMP or of the user; ours sets its own.
            without_our_choice(os.environ),
            rounds=rounds or benchmark.rounds,
            ours_only=ours_only,
            say=lambda text: typer.echo(text, err=True),
        )
    )
    report = _module("report", checkout)
    text = json.dumps(report.as_json(measured, share), indent=2) if as_json else "\n".join(report.table(measured))
    typer.echo(text)


def find_checkout() -> Path:
    """The source checkout that this package runs from."""
    checkout = Path(loopwright.__file__).parents[2]
    if not (checkout / PACKAGE / "__init__.py").exists():
        raise BenchError(
            "the benchmarks are not part of the installed package",
            remedy="clone the repository, run `make setup` there, and use its .venv/bin/loopwright",
        )
    return checkout


def _module(name: str, checkout: Path) -> Any:
    """Import the benchmarks by name: they use the whole package, so the package must not depend on them."""
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return importlib.import_module(f"{PACKAGE}.{name}")
