"""A cluster of several simulated nodes that a run joins from a process of its own, and the actors in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "LOOPWRIGHT_TEST_OF_ACTORS"
"""A variable in the environment of everything that belongs to one test. Its value is the test's folder."""
DEADLINE = 300.0


def marked(folder: Path) -> dict[str, str]:
    """An environment for what the test in this folder starts."""
    return {**os.environ, MARK: str(folder)}


def actors_of(folder: Path) -> set[int]:
    """The process ids of the living actors that belong to the test in this folder."""
    mark = f"{MARK}={folder}".encode()
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_actor(path, mark)}


def _is_actor(path: Path, mark: bytes) -> bool:
    try:
        is_host = (path / "cmdline").read_bytes().startswith(b"ray::Host")
        return is_host and mark in (path / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


class JoinedCluster:
    """The program `ray_nodes.py`."""

    def __init__(self, program: subprocess.Popen[str], folder: Path) -> None:
        self._program = program
        assert program.stdout is not None
        self.address, token = program.stdout.readline().split()
        self.environment = {
            **marked(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        """Of a run that joins it."""

    def tell(self, what: str) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{what}\n")
        self._program.stdin.flush()
        # Ray writes to its output, too, when a node is lost.
        assert "done\n" in iter(self._program.stdout.readline, "")


@contextmanager
def joined_cluster(folder: Path, *cpus: int) -> Iterator[JoinedCluster]:
    """Nodes with so many CPUs, the driver's first."""
    command = [sys.executable, str(Path(__file__).parents[1] / "ray_nodes.py"), *map(str, cpus)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=marked(folder)) as program:
        try:
            yield JoinedCluster(program, folder)
        finally:
            program.communicate(timeout=DEADLINE)
