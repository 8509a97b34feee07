"""Runs one command to its end, and ends everything that it started.

The invariant: when `run` returns or raises, also by cancellation, no process of the trial is left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loopwright.agents.runners.marks import VARIABLE, kill_at_once, nested_mark
from loopwright.agents.runners.output import BoundedOutput
from loopwright.agents.runners.watch import TrialWatch
from loopwright.core.together import to_its_end
from loopwright.serve.marked_processes import ProcessTable, kill_all
from loopwright.workers.own_thread import in_own_thread

log = logging.getLogger("loopwright")

GRACE_SECONDS = 1.0
"""How long a program that is ended may take to clean up."""
KILL_ROUNDS = 40
KILL_PAUSE_SECONDS = 0.05
DRAIN_SECONDS = 2.0
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Command:
    """What to start, and where. `env` is the whole environment but for the trial's mark. `passed` are open files that
    it inherits."""

    arguments: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    stdin: bytes = b""
    passed: tuple[int, ...] = ()


class TrialProcesses:
    """The processes of one trial, which all carry its `mark`. `watch` ends commands that use too much."""

    def __init__(self, mark: str, table: ProcessTable, watch: TrialWatch) -> None:
        self._mark = mark
        self._table = table
        self._watch = watch

    async def run(self, command: Command, output: BoundedOutput) -> int:
        """The exit code; negative if a signal ended the command. Raises ProgramLimitError if it used too much, and
        OSError if it cannot be started."""
        async with collected(output.add) as pipe:
            process = self._start(command, pipe)
            try:
                async with self._watch.over(self._mark):
                    return await _exit_code(process)
            finally:
                await to_its_end(self._end(process))

    def _start(self, command: Command, pipe: IO[bytes]) -> subprocess.Popen[bytes]:
        # asyncio's own subprocesses count as running until their pipes are closed, which a child may keep open.
        try:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(command.stdin)
                stdin.seek(0)
                return subprocess.Popen(
                    command.arguments,
                    cwd=command.folder,
                    env={**command.env, VARIABLE: nested_mark(self._mark)},
                    stdin=stdin,
                    stdout=pipe,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=command.passed,
                )
        except ValueError as error:
            # A NUL byte, or text that is no UTF-8.
            raise OSError(errno.EINVAL, str(error)) from error
        finally:
            pipe.close()

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await _exit_code(process)
        _signal_group(process.pid, signal.SIGKILL)
        for _ in range(KILL_ROUNDS):
            if not await asyncio.to_thread(self._kill_marked):
                break
            await asyncio.sleep(KILL_PAUSE_SECONDS)
        else:
            log.warning("a program's processes cannot be ended; they carry %s=%s", VARIABLE, self._mark)
        with suppress(TimeoutError):
            # A program of another user cannot be killed, and nobody may wait for it for ever.
            async with asyncio.timeout(GRACE_SECONDS):
                await _exit_code(process)

    def _kill_marked(self) -> bool:
        """Kill what carries the mark. False if nothing does."""
        try:
            left = self._table.of(self._mark)
            kill_all(one.pid for one in left)
            if left:
                kill_at_once(self._mark)
        except OSError:
            # Too many files are open: look again.
            return True
        return bool(left)


async def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of the process."""
    if process.poll() is None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            # Another system, or too many files are open.
            return int(await in_own_thread(process.wait, "loopwright-program"))
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return process.wait()


@asynccontextmanager
async def collected(add: Callable[[bytes], None]) -> AsyncIterator[IO[bytes]]:
    """The writing end of a pipe, which the caller closes. What comes out of the pipe goes to `add`."""
    reading, writing = os.pipe()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        with suppress(BlockingIOError):
            if chunk := os.read(reading, CHUNK):
                add(chunk)
                return
            loop.remove_reader(reading)
            ended.set()

    # Not `connect_read_pipe`: uvloop, which Ray's actors run on, closes the pipe twice, and the second time it may be
    # a file that another thread has just opened.
    os.set_blocking(reading, False)
    try:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            loop.add_reader(reading, read)
            yield pipe
            # Nobody writes any more; what is in the pipe is little.
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await ended.wait()
    finally:
        loop.remove_reader(reading)
        os.close(reading)


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
