"""Runs one command to its end, and ends everything that it started.

The invariant: when `run` returns or raises, also by cancellation, no process of the trial is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.runners.marks import VARIABLE, ProcessTable, kill_all
from loopwright.agents.runners.output import BoundedOutput
from loopwright.agents.runners.watch import TrialWatch
from loopwright.core.together import to_its_end
from loopwright.errors import SetupError

GRACE_SECONDS = 1.0
"""How long a program that is ended may take to clean up."""
KILL_ROUNDS = 40
KILL_PAUSE_SECONDS = 0.05
DRAIN_SECONDS = 2.0
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Command:
    """What to start, and where. `env` is the whole environment but for the trial's mark."""

    arguments: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    stdin: bytes = b""


class TrialProcesses:
    """The processes of one trial, which all carry its `mark`. `watch` ends commands that use too much."""

    def __init__(self, mark: str, table: ProcessTable, watch: TrialWatch) -> None:
        self._mark = mark
        self._table = table
        self._watch = watch

    async def run(self, command: Command, output: BoundedOutput) -> int:
        """The exit code; negative if a signal ended the command. Raises ProgramLimitError if it used too much."""
        process = await self._start(command)
        reading = asyncio.ensure_future(_read(process.stdout, output))
        writing = asyncio.ensure_future(_write(process.stdin, command.stdin))
        try:
            async with self._watch.over(self._mark):
                return await process.wait()
        finally:
            await to_its_end(self._end(process, reading, writing))

    async def _start(self, command: Command) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *command.arguments,
                cwd=command.folder,
                env={**command.env, VARIABLE: self._mark},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SetupError(
                f"the program {command.arguments[0]!r} cannot be started: {error}",
                remedy="give its path, or put it on the PATH",
            ) from error

    async def _end(
        self,
        process: asyncio.subprocess.Process,
        reading: asyncio.Future[None],
        writing: asyncio.Future[None],
    ) -> None:
        writing.cancel()
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_SECONDS)
        _signal_group(process.pid, signal.SIGKILL)
        for _ in range(KILL_ROUNDS):
            left = await asyncio.to_thread(self._table.of, self._mark)
            if not left:
                break
            kill_all(one.pid for one in left)
            await asyncio.sleep(KILL_PAUSE_SECONDS)
        await process.wait()
        # Nobody writes any more; what is in the pipe is little.
        await asyncio.wait({reading}, timeout=DRAIN_SECONDS)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(reading, writing, return_exceptions=True)


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


async def _read(stream: asyncio.StreamReader | None, output: BoundedOutput) -> None:
    while stream is not None and (chunk := await stream.read(CHUNK)):
        output.add(chunk)


async def _write(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    # A program need not read what it is told.
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
