"""The file in which a server keeps its records: one server at a time, and errors that say what to do."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopwright.errors import RunError


@contextmanager
def locked_store(path: Path, others: str) -> Iterator[None]:
    """Lock the file. `others` says who has it if it is locked already, such as "another gateway keeps its sessions"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"{others} in {path}", remedy="end that one, or name another file") from error
        yield


def unusable_store(what: str, error: sqlite3.Error | OSError) -> RunError:
    return RunError(f"{what} cannot be used: {error}", remedy="see to the disk's space and the file's permissions")
