"""Starts a program as a child process. It prints one line of JSON when it is ready, and it dies with us.

It gets an allow-listed environment (S3), its own process session, and a log file for its output. Because of the
session, Ctrl-C reaches only this process, which then shuts down in order. The end of the log file is what errors quote
as the program's last words.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from loopwright.errors import EngineLostError

T = TypeVar("T")

GRACE_SECONDS = 5.0
KILLED_SECONDS = 5.0
LAST_WORDS_BYTES = 2000


class Child:
    """A running process. `ready` is the line that it printed when it was ready."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: Path,
        log_start: int,
        grace_seconds: float = GRACE_SECONDS,
        cleans_up: bool = False,
    ) -> None:
        self._process = process
        self._grace_seconds = grace_seconds
        self._cleans_up = cleans_up
        self._log = log
        self._log_start = log_start
        self.ready: Mapping[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """The pipe that the process reads."""
        return _pipe(self._process.stdin)

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What the process prints after its first line."""
        return _pipe(self._process.stdout)

    async def wait(self) -> str:
        """Wait for its end. Returns how it ended, and its last words."""
        return f"{await self.ended()}{self._last_words()}"

    async def ended(self) -> str:
        """Wait for its end, and say how it ended."""
        code = await self._process.wait()
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"

    async def become_ready(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                self.ready = await self._ready_line()
        except TimeoutError:
            raise EngineLostError(
                f"a child process was not ready within {seconds:g} s{self._last_words()}",
                remedy=f"see {self._log}; a large model may need more time",
            ) from None

    async def stop(self) -> None:
        """Ask it to end (SIGTERM), and kill it after a while, or when this is cancelled. One that cleans up after
        others is left alone then: it has been asked."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(self._grace_seconds):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
            except asyncio.CancelledError:
                if not self._cleans_up and self._process.returncode is None:
                    self._process.kill()
                    # asyncio also waits for whoever else holds its pipes.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(KILLED_SECONDS):
                            await self._process.wait()
                raise

    async def _ready_line(self) -> Mapping[str, Any]:
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                return said
        raise EngineLostError(
            f"a child process did not start: {await self.wait()}", remedy=f"its whole log is {self._log}"
        )

    def last_words(self) -> str:
        """The end of what it has written to its log."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(self._log_start, os.fstat(log.fileno()).st_size - LAST_WORDS_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def _last_words(self) -> str:
        words = self.last_words()
        return f"; its last words:\n{words}" if words else ""


def _pipe(pipe: T | None) -> T:
    if pipe is None:
        raise RuntimeError("the process was started without this pipe")
    return pipe


@asynccontextmanager
async def child_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    ready_seconds: float,
    grace_seconds: float = GRACE_SECONDS,
    cleans_up: bool = False,
) -> AsyncIterator[Child]:
    """Start a program and wait until it is ready. When the context ends it is asked to end, and killed if it has not
    done so within `grace_seconds`. If it `cleans_up` after others, it gets this time also when we are cancelled."""
    with log.open("ab") as words:
        log_start = words.tell()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=words,
            env=dict(env),
            start_new_session=True,
        )
    child = Child(process, log, log_start, grace_seconds, cleans_up)
    try:
        await child.become_ready(ready_seconds)
        yield child
    finally:
        await child.stop()
