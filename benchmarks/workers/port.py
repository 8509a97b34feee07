"""A worker's side of the line to the harness: JSON lines over stdin and stdout, and the stopwatch.

    in:  the spec, then one empty object per round; the end of the input ends the worker
    out: {"ready": versions}, then one answer per round

Only the standard library, because it runs in every peer's environment. Whatever else prints goes to stderr: the line
carries answers only.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Port:
    """The line. Make it first in a worker: it moves stdout aside before anything is imported that prints."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.spec: dict[str, Any] = json.loads(sys.stdin.readline())

    def ready(self, *packages: str) -> None:
        """Tell that rounds may come, and which versions of `packages` will be measured."""
        versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
        self._send({"ready": versions})

    def rounds(self) -> Iterator[Stopwatch]:
        """A started stopwatch for each round that is asked for."""
        while (watch := self.next_round()) is not None:
            yield watch

    def next_round(self) -> Stopwatch | None:
        """Wait for the next round; None when there is none."""
        return Stopwatch() if sys.stdin.readline() else None

    def answer(self, taken: dict[str, float], **facts: Any) -> None:
        self._send({**taken, "peak_memory": peak_memory(), **facts})

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()


class Stopwatch:
    """Wall and CPU seconds since it was made; those of the process's own children count."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def stop(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._wall, "cpu_seconds": _cpu_seconds() - self._cpu}


def peak_memory(process: int | str = "self") -> int:
    """The most bytes of memory that the process has held: this one, or the one with that id."""
    status = Path(f"/proc/{process}/status")
    if status.exists():
        # Not getrusage: its peak survives exec, so it may be that of the process that started this one.
        found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(found.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def start_peak_anew(process: int | str = "self") -> int:
    """Forget the peak of the process. Returns the bytes that are resident, from which the new one starts."""
    Path(f"/proc/{process}/clear_refs").write_text("5")
    return peak_memory(process)


def resting_memory() -> int:
    """The bytes that are resident when freed memory has been returned to the system. The peak starts anew from here."""
    ctypes.CDLL(None).malloc_trim(0)
    return start_peak_anew()


def limit_memory(size: int) -> None:
    """Refuse this process, and those that it starts, more than so many bytes each, or than the limit that it has
    already: to allocate more is an error. Memory that is allocated and never touched counts too."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
