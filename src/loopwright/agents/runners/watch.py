"""Looks at all running programs once a second, and ends those that use too much memory, processes or disk.

Limits of the system (`limits.py`) bound a single process or file; these bound a trial as a whole.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.runners.marks import ProcessTable
from loopwright.core.together import own_task
from loopwright.errors import ProgramLimitError

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
            used = await asyncio.to_thread(_usage, self._table, {mark: self._folders.get(mark) for mark in self._tasks})
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


def _usage(table: ProcessTable, folders: Mapping[str, Path | None]) -> dict[str, _Usage]:
    memory, processes = Counter[str](), Counter[str]()
    for process in table.marked():
        memory[process.mark] += process.memory
        processes[process.mark] += 1
    return {
        mark: _Usage(memory[mark], processes[mark], 0 if folder is None else disk_usage(folder))
        for mark, folder in folders.items()
    }


def disk_usage(folder: Path) -> int:
    """Bytes on disk of all files in a folder. Files that vanish meanwhile count as gone."""
    total, todo = 0, [str(folder)]
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
