"""Shows the plan of a run's memory, for `loopwright check --memory`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from loopwright.cli.models import models_folder
from loopwright.config import Loaded

if TYPE_CHECKING:
    from loopwright.build.memory_parts import DeviceRoom, MemoryPlan

GIB = 1 << 30
ALWAYS = "always"


def show_memory(loaded: Loaded, tokens: int | None) -> bool:
    """Print the plan. False if the run does not fit."""
    from loopwright.build.memory import plan_memory

    plan = plan_memory(loaded, models_folder(), tokens)
    for line in table(plan):
        typer.echo(line)
    rooms = list(plan.devices())
    for room in rooms:
        text, colour = verdict(room)
        typer.secho(f"\n{text}", fg=colour)
        if room.largest is not None:
            typer.echo(f"  the largest part is {room.largest.name}: {room.largest.halved_by}")
    return all(room.fits is not False for room in rooms)


def table(plan: MemoryPlan) -> Iterator[str]:
    """GiB of every part, process by process."""
    yield ""
    yield f"conversations of {plan.tokens:,} tokens (--tokens), of which {plan.answer:,} are sampled last"
    for process in plan.processes:
        many = f" ({process.count} of them)" if process.count > 1 else ""
        yield ""
        yield f"{process.name}{many} on {process.device}"
        width = max(len(part.name) for part in process.parts)
        for part in process.parts:
            when = "" if part.when == ALWAYS else f"  while {part.when}"
            yield f"  {part.name:<{width}}  {_gib(part.size):>7}{when}"
        yield f"  {'at most, in GiB':<{width}}  {_gib(process.peak):>7}"


def verdict(room: DeviceRoom) -> tuple[str, str]:
    """One sentence, and its colour."""
    needs = f"{room.device} needs {_gib(room.needed)} GiB"
    if room.total is None:
        return f"{needs}; what it has is not known here", typer.colors.YELLOW
    has = f"of the {_gib(room.total)} GiB that it has"
    if not room.fits:
        return f"does not fit: {needs} {has}", typer.colors.RED
    if room.free is not None and not room.fits_now:
        return f"fits, but not now: {needs} {has}, and {_gib(room.free)} GiB are free", typer.colors.YELLOW
    return f"fits: {needs} {has}", typer.colors.GREEN


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
