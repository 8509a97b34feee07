"""`loopwright doctor`: what is installed, what this machine can do, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.show_errors import FAILED

if TYPE_CHECKING:
    from loopwright.doctor import Advice, Facts

GIB = 1 << 30
COLOURS = {"broken": typer.colors.RED, "care": typer.colors.YELLOW, "next": typer.colors.BLUE}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
) -> None:
    """Say what is installed, what this machine can do, and what to install next."""
    from loopwright.doctor import Severity, advise, examine
    from loopwright.weights.folder import left_behind

    facts = examine(os.environ, runs=Path.cwd(), models=models_folder(), left_behind=left_behind())
    findings = advise(facts)
    if as_json:
        found = [dataclasses.asdict(finding) for finding in findings]
        typer.echo(json.dumps({"facts": dataclasses.asdict(facts), "findings": found}, indent=2))
    else:
        _show(facts, findings)
    if any(finding.severity is Severity.BROKEN for finding in findings):
        raise typer.Exit(FAILED)


def _show(facts: Facts, findings: list[Advice]) -> None:
    for name, text in _rows(facts):
        typer.echo(f"{name:<15} {text}")
    for finding in findings:
        typer.secho(f"\n{finding.severity}: {finding.text}", fg=COLOURS[finding.severity])
        typer.echo(f"  -> {finding.remedy}")
    if not findings:
        typer.secho("\nnothing to complain about", fg=typer.colors.GREEN)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    cores, memory = facts.cores, facts.memory
    yield "loopwright", f"{facts.loopwright} on Python {facts.python}"
    for extra in facts.extras:
        versions = ", ".join(f"{package} {version or 'missing'}" for package, version in extra.versions.items())
        yield f"[{extra.name}]", f"{versions} ({extra.purpose})"
    quota = "" if cores.quota is None else f", quota {cores.quota:g}"
    yield "cores", f"{_known(cores.usable)} usable of {_known(cores.machine)}{quota}"
    if facts.busy is not None:
        yield "busy", f"{facts.busy:.0%} of the cores, by others"
    yield "memory", f"{_size(memory.usable)} usable of {_size(memory.machine)}, {_size(memory.available)} free now"
    for disk in facts.disks:
        yield "disk", f"{disk.folder} ({disk.purpose}): {_size(disk.free)} free, {_known(disk.kind)}"
    if facts.torch is not None and facts.torch.error is None:
        gpus = ", ".join(facts.torch.gpus) or "none"
        yield "torch", f"{facts.torch.threads} threads; bfloat16 on the CPU: {facts.torch.bf16}; GPUs: {gpus}"
        yield "decoding", "by native steps" if facts.not_native is None else "by torch"
    models = ", ".join(f"{name} ({_size(size)})" for name, size in facts.models.items())
    yield "models", models or "none converted yet"


def _known(value: object) -> str:
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _size(value: int | None) -> str:
    return "unknown" if value is None else f"{value / GIB:.1f} GiB"
