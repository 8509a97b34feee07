"""Facts about a machine and an installation, as plain values. None means that a fact could not be found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Cores:
    """The number of cores: of the machine, those that this process may use, and the quota of its control group."""

    machine: int | None
    affinity: int | None
    quota: float | None

    @property
    def usable(self) -> float | None:
        known = [count for count in (self.machine, self.affinity, self.quota) if count is not None]
        return min(known) if known else None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes. `limit` is the limit of the control group."""

    machine: int | None
    available: int | None
    limit: int | None

    @property
    def usable(self) -> int | None:
        known = [count for count in (self.machine, self.limit) if count is not None]
        return min(known) if known else None


class FolderPurpose(StrEnum):
    """What a folder is for."""

    RUNS = "runs"
    MODELS = "converted models"


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that a folder is on, or would be on. `mount` is where it is mounted."""

    purpose: FolderPurpose
    folder: str
    mount: str | None
    free: int | None
    kind: str | None
    writable: bool


@dataclass(frozen=True, slots=True)
class InstalledExtra:
    """A part of the installation: the extra's name, what it is for, and the versions of its packages."""

    name: str
    purpose: str
    versions: Mapping[str, str | None]


class Bf16(StrEnum):
    """What happens to a small matrix product in bfloat16 on the CPU."""

    WORKS = "works"
    KILLED = "killed"
    """An illegal instruction kills the process."""
    KILLED_UNLESS_CAPPED = "killed unless capped"
    """It works with `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16`."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Torch:
    """What a child process found out about torch. `error` says why it could not be imported."""

    version: str | None = None
    threads: int | None = None
    gpus: tuple[str, ...] = ()
    bf16: Bf16 = Bf16.UNKNOWN
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that the probes found. `torch` is None if it is not installed.

    `not_native` says why the embedded engine decodes with torch instead of native steps, if it does. `left_behind` are
    folders in memory with the weights of dead runs, and their sizes in bytes. `busy` is the share of the cores that
    other programs used during the probe. `gpus` are those of the machine, which torch may not know.
    """

    python: str
    loopwright: str
    extras: tuple[InstalledExtra, ...]
    cores: Cores
    memory: Memory
    disks: tuple[Disk, ...]
    models: Mapping[str, int]
    torch: Torch | None
    not_native: str | None = None
    omp_threads: str | None = None
    busy: float | None = None
    gpus: int = 0
    left_behind: Mapping[str, int] = field(default_factory=dict)
