"""Two trees of one repository: this one, and a commit in a worktree of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import environment_of
from loopwright.errors import BenchError
from loopwright.models.openmp import without_our_choice


@dataclass(frozen=True, slots=True)
class Tree:
    """Source code that is measured, and the environment of whoever measures it."""

    name: str
    path: Path
    env: Mapping[str, str]

    def environment(self, threads: int) -> dict[str, str]:
        """Of a process that runs this tree's code, whichever tree the environment was set up from."""
        # Each tree says itself how its threads wait, unless the user does.
        own = without_our_choice(self.env)
        return {**environment_of(own, self.path, threads), "PYTHONPATH": f"{self.path / 'src'}:{self.path}"}


@contextmanager
def worktree_of(commit: str, repository: Path, path: Path) -> Iterator[Path]:
    """The commit, checked out at `path` until the context is left."""
    _git(repository, "worktree", "add", "--detach", "--quiet", str(path), commit)
    try:
        yield path
    finally:
        _git(repository, "worktree", "remove", "--force", str(path))


def _git(repository: Path, *arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"git {arguments[0]} failed: {done.stderr.strip()}", remedy="name a commit of this repository")
