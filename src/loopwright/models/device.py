"""Which device a model computes on, and what to do where that is not possible."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass

import torch

from loopwright.config.base import known_device
from loopwright.errors import ConfigError
from loopwright.models.gpus import machine_gpus

AUTO, CPU, CUDA = "auto", "cpu", "cuda"

log = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class SeenGpus:
    """What torch can use, and what the machine has. `build` is what torch was built for, such as `CUDA 13.0`; None if
    it was built for CPUs only."""

    build: str | None
    usable: int
    in_machine: int

    @property
    def why_none(self) -> str:
        """Why torch can use no GPU."""
        if self.in_machine and self.build is None:
            return f"torch {torch.__version__} is built for CPUs only, and this machine has a GPU"
        if self.in_machine:
            return f"this machine has a GPU, and torch, built for {self.build}, cannot use it"
        return "this machine has no GPU"

    @property
    def remedy(self) -> str:
        """What makes a GPU usable, or else what to do without one."""
        if self.in_machine and self.build is None:
            return (
                "install a build of torch for GPUs: pip install --force-reinstall torch --index-url "
                "https://download.pytorch.org/whl/ and the version of CUDA that pytorch.org names for your driver"
            )
        if self.in_machine:
            return (
                f"install a driver for {self.build} (nvidia-smi shows yours); if CUDA_VISIBLE_DEVICES hides it, "
                "unset that"
            )
        return "set it to cpu, or to auto, which takes a GPU if there is one"


def seen_gpus() -> SeenGpus:
    cuda, hip = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda is not None else f"ROCm {hip}" if hip is not None else None
    usable = torch.cuda.device_count() if build is not None and torch.cuda.is_available() else 0
    return SeenGpus(build, usable, machine_gpus())


def chosen_device(
    wanted: str, *, setting: str = "model.device", repeatable: bool = False, seen: SeenGpus | None = None
) -> torch.device:
    """The device that `setting` names: `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is the first GPU, or else the CPU. It
    is the CPU if the run must be `repeatable`."""
    if wanted == CPU or (wanted == AUTO and repeatable):
        return torch.device(CPU)
    try:
        known_device(wanted)
    except ValueError as error:
        raise ConfigError(f"{setting} is {wanted}", remedy=str(error)) from error
    seen = seen or seen_gpus()
    if wanted == AUTO and not seen.usable:
        if seen.in_machine:
            log.warning("%s: the model is computed on the CPU. To change that, %s", seen.why_none, seen.remedy)
        return torch.device(CPU)
    device = torch.device(CUDA, 0) if wanted in (AUTO, CUDA) else torch.device(wanted)
    if not seen.usable:
        raise ConfigError(f"{setting} is {wanted}: {seen.why_none}", remedy=seen.remedy)
    if device.type == CUDA and (device.index or 0) >= seen.usable:
        usable = ", ".join(f"cuda:{number}" for number in range(seen.usable))
        raise ConfigError(
            f"{setting} is {wanted}, and torch can use {usable}",
            remedy="set it to one of these; CUDA_VISIBLE_DEVICES may hide others, and renumbers those that it names",
        )
    return device


def planned_device(wanted: str, *, repeatable: bool = False) -> str:
    """The name of the device that `wanted` means, also if this machine does not have it."""
    if wanted == AUTO:
        return str(chosen_device(AUTO, repeatable=repeatable))
    return f"{CUDA}:0" if wanted == CUDA else wanted


def device_of_rank(wanted: str, rank: int, ranks: int) -> torch.device:
    """The device of one rank of a learner: rank r takes the r-th GPU that torch can use."""
    device = chosen_device(wanted)
    if device.type != CUDA:
        return device
    if torch.cuda.device_count() < ranks:
        raise ConfigError(
            f"learner.ranks is {ranks}, and torch can use {torch.cuda.device_count()} GPUs",
            remedy="lower learner.ranks, or set model.device to cpu; CUDA_VISIBLE_DEVICES may hide GPUs",
        )
    return torch.device(CUDA, rank)


def give_back(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device, so that other processes can have it."""
    # What a pass of a model leaves behind refers to itself in part, and would keep its memory for a while.
    gc.collect()
    if device.type == CUDA:
        torch.cuda.empty_cache()
