"""The folder of a cluster that a run has started: Ray's sockets, its logs, and values that do not fit its memory.

Its name is made of the run and of the process, so whoever opens the run again finds what a killed process has left,
wherever that one was when it was killed. A process holds the lock of its folder; the kernel releases it when the
process dies in any way. So a folder without a lock was left by a dead process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopwright.errors import RunError

LONGEST = 41
"""How many bytes the path may have: Ray and we add 66, and that of a socket must not have more than 107."""
SHORT = Path("/tmp")
REMOVE_SECONDS = 5.0
"""For how long a process that ends may put files into a folder that is being removed."""
LOOK_AGAIN_SECONDS = 0.1


@contextmanager
def ray_folder(run: Path) -> Iterator[Path]:
    """A private folder for the cluster of the run in the folder `run`. It is removed when the block ends. What killed
    processes of the run have left is removed first."""
    remove_leftovers(run)
    parent = Path(tempfile.gettempdir())
    folder = parent / f"{_prefix(run)}{os.getpid()}"
    if len(os.fsencode(folder)) > LONGEST:
        folder = SHORT / folder.name
    try:
        folder.mkdir(mode=0o700)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)
    except OSError as error:
        raise RunError(
            f"the folder {folder} for the run's Ray cluster cannot be made: {error}",
            remedy="make room there, or set TMPDIR to another folder with a short path",
        ) from error
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(held)


@contextmanager
def noted(folder: Path, note: Path) -> Iterator[None]:
    """Write down which folder this process uses, while the block runs."""
    note.write_text(json.dumps({"folder": str(folder), "pid": os.getpid()}), "utf-8")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def remove_leftovers(run: Path) -> list[Path]:
    """Remove the folders that dead processes of this run have left. Returns which."""
    parents = dict.fromkeys((Path(tempfile.gettempdir()), SHORT))
    found = [folder for parent in parents for folder in sorted(parent.glob(f"{_prefix(run)}*"))]
    left = [folder for folder in found if _is_left(folder)]
    for folder in left:
        _remove(folder)
    return left


def _prefix(run: Path) -> str:
    return f"lw-ray-{hashlib.blake2b(os.fsencode(run.resolve()), digest_size=4).hexdigest()}-"


def _is_left(folder: Path) -> bool:
    """Whether it is ours, and no process holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + REMOVE_SECONDS
    while folder.exists():
        with suppress(OSError):
            shutil.rmtree(folder)
            return
        if time.monotonic() > deadline:
            shutil.rmtree(folder, ignore_errors=True)
            return
        time.sleep(LOOK_AGAIN_SECONDS)
