"""Looks at all running programs once a second, and ends those that use too much memory, processes or disk.

Limits of the system (`confine.py`) bound a single process or file; these bound a trial as a whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.runners.marks import own_memory
from loopwright.core.together import own_task
from loopwright.errors import ProgramLimitError
from loopwright.serve.marked_processes import Process, ProcessTable

LOOK_SECONDS = 1.0
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What the processes of one trial may use together."""

    memory_mb: int
    processes: int
    disk_mb: int


class TrialWatch:
    """Watches the trials of one runner. One look serves all of them."""

    def __init__(self, limits: ProgramLimits, table: ProcessTable) -> None:
        self._limits = limits
        self._table = table
        self._folders: dict[str, Path] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}
        self._broken: dict[str, ProgramLimitError] = {}
        self._looking: asyncio.Task[None] | None = None

    def know(self, mark: str, folder: Path) -> None:
        """`folder` holds all that the trial may write."""
        self._folders[mark] = folder

    def forget(self, mark: str) -> None:
        self._folders.pop(mark, None)

    @asynccontextmanager
    async def over(self, mark: str) -> AsyncIterator[None]:
        """Inside this block the trial is watched. The block ends with ProgramLimitError if it uses too much."""
        task = own_task()
        self._tasks[mark] = task
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            # A cancellation by somebody else stays one.
            if mark in self._broken and task.uncancel() <= before:
                raise self._broken[mark] from None
            raise
        finally:
            self._broken.pop(mark, None)
            del self._tasks[mark]
            if not self._tasks and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            watched = {mark: self._folders.get(mark) for mark in self._tasks}
            try:
                used = await asyncio.to_thread(_usage, self._table, watched, self._limits.memory_mb * MB)
            except OSError:
                # Too many files are open. The next look may see more.
                continue
            for mark, broken in used.items():
                if (error := self._too_much(broken)) and mark in self._tasks and mark not in self._broken:
                    self._broken[mark] = error
                    self._tasks[mark].cancel()

    def _too_much(self, used: _Usage) -> ProgramLimitError | None:
        limits = self._limits
        for value, most, what, setting in (
            (used.memory / MB, limits.memory_mb, "MB of memory", "memory_mb"),
            (used.processes, limits.processes, "processes", "processes"),
            (used.disk / MB, limits.disk_mb, "MB of disk", "disk_mb"),
        ):
            if value > most:
                return ProgramLimitError(
                    f"the program used {value:,.0f} {what}, and {most:,} are allowed",
                    remedy=f"raise {setting} of its runner, or let the program use less",
                )
        return None


@dataclass(frozen=True, slots=True)
class _Usage:
    memory: int
    processes: int
    disk: int


def _usage(table: ProcessTable, folders: Mapping[str, Path | None], most_memory: int) -> dict[str, _Usage]:
    processes: dict[str, list[Process]] = {mark: [] for mark in folders}
    for process in table.marked():
        for mark in process.marks:
            processes.get(mark, []).append(process)
    return {
        mark: _Usage(
            _memory(of_trial, most_memory), len(of_trial), disk_usage(folder) if (folder := folders[mark]) else 0
        )
        for mark, of_trial in processes.items()
    }


def _memory(processes: Sequence[Process], most: int) -> int:
    """Bytes in memory. What processes share counts once; that takes long to find out, so it is asked only if needed."""
    total = sum(process.memory for process in processes)
    return total if total <= most else sum(map(own_memory, processes))


def disk_usage(folder: Path) -> int:
    """Bytes on disk of all that is in a folder. Files that vanish meanwhile count as gone, and links to one file count
    once."""
    total, todo, linked = 0, [str(folder)], set[int]()
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    elif status.st_nlink > 1:
                        if status.st_ino in linked:
                            continue
                        linked.add(status.st_ino)
                    total += status.st_blocks * 512
    return total
