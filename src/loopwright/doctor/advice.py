"""Computes advice from the facts. These are pure functions, so tests can try any machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from loopwright.doctor.busy import BUSY
from loopwright.doctor.facts import Bf16, Cores, Disk, Facts, FolderPurpose, Memory, Torch

NETWORKED = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "sshfs",
}
"""File systems on which SQLite's write-ahead log does not work, because it needs memory that all its users share."""

MIB = 1 << 20
GIB = 1 << 30
LITTLE_MEMORY = 4 * GIB
LITTLE_DISK = 5 * GIB
CHOOSE_ANOTHER = {
    FolderPurpose.RUNS: "put trainer.run_dir into a folder that you may write to",
    FolderPurpose.MODELS: "set XDG_CACHE_HOME to a folder that you may write to",
}
MAKE_ROOM = {
    FolderPurpose.RUNS: "make room: a checkpoint takes three times the model's size",
    FolderPurpose.MODELS: "make room, or set XDG_CACHE_HOME to another disk: converted models are kept there",
}


class Severity(StrEnum):
    """How important an advice is."""

    BROKEN = "broken"
    """Something that is installed does not work."""
    CARE = "care"
    """It works, but the user should know this."""
    NEXT = "next"
    """Something more could be installed."""


@dataclass(frozen=True, slots=True)
class Advice:
    severity: Severity
    text: str
    remedy: str


def advise(facts: Facts) -> list[Advice]:
    """All advice, the most severe first."""
    found = [
        *_torch(facts.torch, facts.gpus),
        *_cores(facts.cores, facts.torch, facts.omp_threads),
        *_memory(facts.memory),
    ]
    found += _busy(facts.busy)
    found += [finding for disk in facts.disks for finding in _disk(disk)]
    found += _little_disk(facts.disks)
    found += _left_behind(facts.left_behind)
    found += _native(facts.not_native)
    found += _missing(facts)
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


def _torch(torch: Torch | None, in_machine: int) -> Iterator[Advice]:
    if torch is None:
        return
    if torch.error is not None:
        yield Advice(
            Severity.BROKEN,
            f"torch is installed but cannot be imported: {torch.error}",
            "reinstall it: pip install --force-reinstall torch",
        )
    if torch.error is None and not torch.gpus and in_machine:
        yield Advice(
            Severity.CARE,
            f"this machine has a GPU, and torch {torch.version} cannot use it",
            "install a build of torch for GPUs (pytorch.org names the command) and a driver for it; or set "
            "model.device: cpu",
        )
    if torch.gpus:
        yield Advice(
            Severity.CARE,
            f"{', '.join(torch.gpus)}: training and the embedded engine compute there, which nobody has seen yet",
            "run `loopwright doctor --gpu` first, which takes about ten minutes; model.device: cpu leaves it alone",
        )
    if torch.bf16 in (Bf16.KILLED, Bf16.KILLED_UNLESS_CAPPED):
        remedy = "leave model.dtype at float32"
        if torch.bf16 is Bf16.KILLED_UNLESS_CAPPED:
            remedy += ", or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (slower than float32)"
        yield Advice(
            Severity.CARE,
            "bfloat16 kills the process (SIGILL): the CPU advertises AMX instructions that this machine traps",
            remedy,
        )


def _cores(cores: Cores, torch: Torch | None, omp_threads: str | None) -> Iterator[Advice]:
    if torch is None or torch.threads is None or cores.usable is None:
        return
    if torch.threads > max(1, int(cores.usable)):
        why = f"OMP_NUM_THREADS is {omp_threads}" if omp_threads else "torch counts the machine's cores"
        yield Advice(
            Severity.CARE,
            f"torch would use {torch.threads} threads on {cores.usable:g} usable cores and lose time in waiting: {why}",
            f"set model.threads: {max(1, int(cores.usable))}",
        )


def _memory(memory: Memory) -> Iterator[Advice]:
    if memory.usable is not None and memory.usable < LITTLE_MEMORY:
        yield Advice(
            Severity.CARE,
            f"only {memory.usable / GIB:.1f} GiB of memory may be used",
            "choose a small model, and lower learner.micro_batch_tokens and rollout.engine.max_batch",
        )


def _busy(share: float | None) -> Iterator[Advice]:
    if share is not None and share > BUSY:
        yield Advice(
            Severity.CARE,
            f"the machine is busy: other programs use {share:.0%} of its cores, and a run is slower by more than that",
            "end them, or give the run fewer threads (model.threads); benchmarks mean little meanwhile",
        )


def _disk(disk: Disk) -> Iterator[Advice]:
    if not disk.writable:
        yield Advice(Severity.CARE, f"{disk.folder}, for {disk.purpose}, is not writable", CHOOSE_ANOTHER[disk.purpose])
    if disk.purpose is FolderPurpose.RUNS and (disk.kind or "").removeprefix("fuse.") in NETWORKED:
        yield Advice(
            Severity.CARE,
            f"{disk.folder} is on a network file system ({disk.kind}): a run's database does not work there",
            "put trainer.run_dir on a local disk",
        )


def _little_disk(disks: Sequence[Disk]) -> Iterator[Advice]:
    """Report each file system once, even if it holds several of our folders."""
    for disk in {disk.mount or disk.folder: disk for disk in reversed(disks)}.values():
        if disk.free is not None and disk.free < LITTLE_DISK:
            yield Advice(
                Severity.CARE,
                f"{disk.folder}, for {disk.purpose}, has only {disk.free / GIB:.1f} GiB left",
                MAKE_ROOM[disk.purpose],
            )


def _left_behind(folders: Mapping[str, int]) -> Iterator[Advice]:
    if folders:
        listed = ", ".join(f"{folder} ({size / MIB:.0f} MiB)" for folder, size in folders.items())
        yield Advice(
            Severity.CARE,
            f"runs that were killed have left their weights in memory: {listed}",
            f"remove them: rm -r {' '.join(folders)}; a run that is started again frees its own",
        )


def _native(why_not: str | None) -> Iterator[Advice]:
    if why_not is not None:
        yield Advice(
            Severity.NEXT,
            f"sampling is slower than it could be: {why_not}",
            "install gcc with OpenMP (Debian: apt-get install gcc libc6-dev)"
            if "compiler" in why_not
            else "fix that; without native steps the engine decodes with torch",
        )


def _missing(facts: Facts) -> Iterator[Advice]:
    for extra in facts.extras:
        absent = [package for package, version in extra.versions.items() if version is None]
        if absent:
            yield Advice(
                Severity.NEXT,
                f"{extra.purpose}: {', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed",
                f"pip install 'loopwright[{extra.name}]'",
            )
