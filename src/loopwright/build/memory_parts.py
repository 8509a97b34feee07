"""What a plan of memory consists of: processes, and the parts of what each takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from loopwright.models.memory import room_on


class When(StrEnum):
    """When a part of the memory is needed. Sampling and training take turns in a process that does both."""

    ALWAYS = "always"
    SAMPLING = "sampling"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """What takes `size` bytes, and what makes it half as large."""

    name: str
    size: int
    halved_by: str
    when: When = When.ALWAYS


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One of `count` processes that need the same on `device`. `here` is False where that is another machine's, or may
    be."""

    name: str
    device: str
    parts: tuple[MemoryPart, ...]
    count: int = 1
    here: bool = True

    @property
    def peak(self) -> int:
        sizes = {when: sum(part.size for part in self.parts if part.when is when) for when in When}
        return sizes[When.ALWAYS] + max(sizes[When.SAMPLING], sizes[When.TRAINING])


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """What all processes on a device need at their peaks, and what it has. None: nobody knows."""

    device: str
    needed: int
    total: int | None
    free: int | None
    largest: MemoryPart | None

    @property
    def fits(self) -> bool | None:
        return None if self.total is None else self.needed <= self.total

    @property
    def fits_now(self) -> bool | None:
        return None if self.free is None else self.needed <= self.free


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`tokens` is how long each conversation was taken to get, and `answer` of them are sampled last."""

    tokens: int
    answer: int
    processes: tuple[ProcessMemory, ...]

    def devices(self) -> Iterator[DeviceRoom]:
        here = [process for process in self.processes if process.here]
        for device in dict.fromkeys(process.device for process in here):
            mine = [process for process in here if process.device == device]
            total, free = room_on(device)
            smaller = [part for process in mine for part in process.parts if part.halved_by]
            largest = max(smaller, key=lambda part: part.size, default=None)
            yield DeviceRoom(device, sum(process.count * process.peak for process in mine), total, free, largest)
