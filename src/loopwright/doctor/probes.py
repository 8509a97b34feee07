"""Runs all probes one after the other. Each has a time limit, and a probe that fails does not hide the other facts."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from loopwright.doctor.busy import busy_share
from loopwright.doctor.facts import Facts, FolderPurpose
from loopwright.doctor.machine import cores, disk, memory
from loopwright.doctor.packages import extras, installed
from loopwright.doctor.torch_probe import probe_torch
from loopwright.models.gpus import machine_gpus
from loopwright.models.native.library import Unavailable, library


def examine(env: Mapping[str, str], *, runs: Path, models: Path, left_behind: Mapping[Path, int]) -> Facts:
    """Collect the facts of this machine. `runs` is the folder for runs, `models` the folder for converted models.
    `left_behind` are the weights folders of dead runs."""
    # This comes first, because the other probes keep the machine busy themselves.
    busy = busy_share()
    torch = probe_torch(env) if installed("torch") else None
    compiled = library(models / "native") if torch is not None else None
    return Facts(
        python=platform.python_version(),
        loopwright=installed("loopwright") or "not installed",
        extras=extras(),
        cores=cores(),
        memory=memory(),
        disks=(disk(FolderPurpose.RUNS, runs), disk(FolderPurpose.MODELS, models)),
        models=_sizes(models),
        torch=torch,
        not_native=compiled.reason if isinstance(compiled, Unavailable) else None,
        omp_threads=env.get("OMP_NUM_THREADS"),
        busy=busy,
        gpus=machine_gpus(),
        left_behind={str(folder): size for folder, size in left_behind.items()},
    )


def _sizes(folder: Path) -> dict[str, int]:
    """The models in a cache, by name, with their size in bytes."""
    found = sorted(config.parent for config in folder.glob("*/config.json"))
    return {each.name: sum(file.stat().st_size for file in each.iterdir() if file.is_file()) for each in found}
