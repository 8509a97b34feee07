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
RAYS_OWN_SECONDS = 70.0
"""How long Ray's own processes may take: its agents, and workers that it has started and that are not actors yet. They
hold nothing of the run."""
RAYS_OWN = (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent", b"ray::IDLE")
YOUNG = (b"/ray/dashboard/agent.py", b"/runtime_env/agent/main.py", b"/workers/default_worker.py")
"""What they are called until they have named themselves: seconds, on a busy machine."""
ACTOR = b"ray::Host"
"""How Ray names the process of an actor of ours."""
RANK = b"learner-rank"
"""The command of a rank of the learner."""


class Life:
    """Runs `command` in a session of its own. Use it as `with`: afterwards nothing of it is left, or it raises."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._killed_at = 0.0
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
        while left := [process for process in self._left() if not _is_rays_own(process)]:
            if time.monotonic() > deadline:
                names = {process: _command(process)[:200].replace(b"\0", b" ").decode() for process in left}
                for process in left:
                    os.kill(process, signal.SIGKILL)
                raise RuntimeError(f"processes outlived the run that started them: {names}")
            time.sleep(0.02)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """The whole process group, at once. If it has a cluster, only the driver: the cluster has to notice it."""
        kill = os.kill if self.actors() else os.killpg
        kill(self._process.pid, signal.SIGKILL)
        self._killed_at = time.monotonic()
        self._process.wait()

    def actors(self) -> list[int]:
        """The processes of its actors."""
        return [process for process in self._left() if _command(process).startswith(ACTOR)]

    def ranks(self) -> list[int]:
        """The processes of its learner's ranks. They do not carry the mark: their environment is an allowed part."""
        children = (int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == self._process.pid)
        return [process for process in children if RANK in _command(process).split(b"\0")]

    def wait_for_rays_own(self) -> None:
        """See that nothing at all is left, in time."""
        while left := self._left():
            if time.monotonic() > self._killed_at + RAYS_OWN_SECONDS:
                raise RuntimeError(f"processes {left} outlived the run that started them")
            time.sleep(0.1)

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


def _is_rays_own(process: int) -> bool:
    command = _command(process)
    return command.startswith(RAYS_OWN) or any(one.endswith(YOUNG) for one in command.split(b"\0"))


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # it has ended meanwhile


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile
