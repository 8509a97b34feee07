"""One process with all its children, which end together: those that outlive it are found, and are an error."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MARK = "CHAOS_LIFE"
ORPHAN_SECONDS = 10.0
"""How long children may take to notice that their parent is gone."""


class Life:
    """Runs `command` in a session of its own. Use it as `with`: afterwards nothing of it is left, or it raises."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._mark = uuid.uuid4().hex
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: self._mark},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_alive:
            self.kill()
        deadline = time.monotonic() + ORPHAN_SECONDS
        while left := self._left():
            if time.monotonic() > deadline:
                for process in left:
                    os.kill(process, signal.SIGKILL)
                raise RuntimeError(f"processes {left} outlived the run that started them")
            time.sleep(0.02)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """The whole process group, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, seconds: float) -> int:
        return self._process.wait(timeout=seconds)

    def _left(self) -> list[int]:
        """Processes that carry the mark in their environment, or belong to the session."""
        mark = f"{MARK}={self._mark}".encode()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._is_ours(path, mark)]

    def _is_ours(self, path: Path, mark: bytes) -> bool:
        try:
            # The fields after the command's name, which may hold anything: state, parent, group, session.
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            marked = mark in (path / "environ").read_bytes().split(b"\0")
        except OSError:
            return False  # it has ended meanwhile
        return state != "Z" and (marked or int(session) == self._process.pid)
