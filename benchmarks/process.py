"""The harness's side of the line to a worker: it is started once and obeys round by round.

Every wait has a deadline, and leaving `async with` ends the process, whatever it was doing.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.setting import Spec
from loopwright.errors import BenchError

LONGEST_WAIT = 3600.0
"""Seconds to wait for a worker's answer. The slowest known round takes minutes."""

GRACE = 10.0
"""Seconds that a worker gets to end by itself."""

LINES_OF_LOG = 15
LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """What to start: a worker's module, the Python that runs it, and its environment."""

    name: str
    python: Path
    module: str
    checkout: Path
    environment: Mapping[str, str]


def environment_of(base: Mapping[str, str], checkout: Path, threads: int) -> dict[str, str]:
    """The same for every side: as many threads, this checkout's benchmarks, and no network."""
    return {
        **base,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": str(checkout),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


class Worker:
    """A started process. `versions` are those of what it measures."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._process = process
        self._log = log

    @staticmethod
    @asynccontextmanager
    async def start(program: Program, spec: Spec, log: Path) -> AsyncIterator[Worker]:
        """Start it and wait until it is ready. What it prints is kept in `log`."""
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                program.python,
                "-m",
                program.module,
                stdin=PIPE,
                stdout=PIPE,
                stderr=file,
                cwd=program.checkout,
                env=program.environment,
                limit=LONGEST_LINE,
            )
        worker = Worker(program.name, process, log)
        try:
            worker.versions = (await worker._ask(spec))["ready"]
            yield worker
        finally:
            await worker._end()

    async def round(self) -> dict[str, Any]:
        """One round's answer."""
        return await self._ask({})

    async def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("a worker is started with pipes")
        stdin.write(json.dumps(message).encode() + b"\n")
        try:
            await stdin.drain()
            line = await asyncio.wait_for(stdout.readline(), LONGEST_WAIT)
        except TimeoutError as error:
            raise self._failed(f"gave no answer within {LONGEST_WAIT:.0f} s") from error
        except ConnectionError as error:
            raise self._failed("died") from error
        if not line:
            raise self._failed("died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), GRACE)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _failed(self, how: str) -> BenchError:
        said = self._log.read_text("utf-8", errors="replace").splitlines()[-LINES_OF_LOG:]
        return BenchError(
            f"the benchmark's process {self.name!r} {how}; it said last:\n  " + "\n  ".join(said or ["(nothing)"]),
            remedy="mend what it complains about; a process that was killed has probably run out of memory",
            worker=self.name,
        )
