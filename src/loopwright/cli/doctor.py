"""`loopwright doctor`: what is installed, what this machine can do, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.show_errors import FAILED
from loopwright.config.base import known_device
from loopwright.errors import ConfigError

if TYPE_CHECKING:
    from loopwright.cluster.probe import FoundCluster
    from loopwright.doctor import Advice, Facts

GIB = 1 << 30
COLOURS = {"broken": typer.colors.RED, "care": typer.colors.YELLOW, "next": typer.colors.BLUE}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
    address: Annotated[
        str | None,
        typer.Option("--cluster", help="Also join this Ray cluster (auto or host:port), and list its nodes."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Only check what the GPU computes, against the CPU.")] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", parser=known_device, metavar="DEVICE", help="Which one --gpu checks. Default: cuda."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="What --gpu computes: as model.path. Default: a tiny random model.")
    ] = None,
) -> None:
    """Say what is installed, what this machine can do, and what to install next."""
    _refuse_idle_options(gpu, {"--json": as_json, "--cluster": address}, {"--device": device, "--model": model})
    if gpu:
        _check_device(device or "cuda", model)
        return
    from loopwright.doctor import Severity, advise, examine
    from loopwright.weights.folder import left_behind

    facts = examine(os.environ, runs=Path.cwd(), models=models_folder(), left_behind=left_behind())
    cluster, not_joined = _cluster(address)
    findings = [*not_joined, *advise(facts)]
    if as_json:
        said = {
            "facts": dataclasses.asdict(facts),
            "cluster": None if cluster is None else dataclasses.asdict(cluster),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        typer.echo(json.dumps(said, indent=2))
    else:
        _show([*_rows(facts), *_cluster_rows(cluster)], findings)
    if any(finding.severity is Severity.BROKEN for finding in findings):
        raise typer.Exit(FAILED)


def _refuse_idle_options(gpu: bool, without: dict[str, object], with_it: dict[str, object]) -> None:
    """`without` are the options that do nothing with --gpu, and `with_it` those that do nothing without it."""
    idle = [name for name, value in (without if gpu else with_it).items() if value]
    if idle:
        names = " and ".join(idle)
        raise ConfigError(
            f"{names} would do nothing {'beside' if gpu else 'without'} --gpu",
            remedy=f"remove {names}" if gpu else f"add --gpu, or remove {names}",
        )


def _check_device(wanted: str, model: str | None) -> None:
    """Print each check when it is done. All must pass."""
    from loopwright.models.runtime import configure
    from loopwright.testing.device_check import DeviceCheck, described, device_to_check
    from loopwright.testing.tiny import tiny_llama

    async def check(path: str) -> bool:
        passed = True
        async for one in DeviceCheck(device, path, models_folder()).run():
            word, colour = ("ok", typer.colors.GREEN) if one.passed else ("WRONG", typer.colors.RED)
            typer.echo(f"{typer.style(f'{word:<6}', fg=colour)} {one.name}: {one.found}")
            passed = passed and one.passed
        return passed

    device = device_to_check(wanted)
    for line in described(device):
        typer.echo(line)
    configure(threads=None, deterministic=False)
    with tempfile.TemporaryDirectory() as folder:
        if not asyncio.run(check(model or str(tiny_llama(Path(folder), max_position_embeddings=16_384)))):
            typer.echo("\nplease open an issue with these lines, your GPU and your version of torch")
            raise typer.Exit(FAILED)


def _cluster(address: str | None) -> tuple[FoundCluster | None, list[Advice]]:
    """The cluster, or why it cannot be joined."""
    from loopwright.cluster.probe import examine_cluster
    from loopwright.config.extras import require
    from loopwright.doctor import Advice, Severity

    if address is None:
        return None, []
    try:
        require("ray", "--cluster")
        return examine_cluster(address), []
    except ConfigError as error:
        return None, [Advice(Severity.BROKEN, error.message, error.remedy)]


def _cluster_rows(cluster: FoundCluster | None) -> Iterator[tuple[str, str]]:
    if cluster is None:
        return
    yield "cluster", f"{cluster.address}, Ray {cluster.ray}, {len(cluster.nodes)} nodes"
    for node in cluster.nodes:
        has = node.resources
        yield (
            "node",
            f"{node.address}: {has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs, "
            + (f"{_size(int(has.get('memory', 0)))} memory"),
        )


def _show(rows: list[tuple[str, str]], findings: list[Advice]) -> None:
    for name, text in rows:
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
