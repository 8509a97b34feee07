"""The folder in shared memory for the weights of a run. At most one process uses it, and that process holds its lock.

The kernel releases the lock when the process dies in any way. So a folder without a lock was left by a dead process.
Nothing heavy is imported here, because `loopwright doctor` looks for such folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopwright.errors import WeightsError

SHARED_MEMORY = Path("/dev/shm")
"""A folder in memory on Linux. On other systems the run folder is used."""

OPEN_FILES = Path("/proc/self/fd")
"""Links to what this process has open, on Linux."""


@contextmanager
def weights_folder(run_folder: Path, shared_memory: Path = SHARED_MEMORY) -> Iterator[Path]:
    """A private folder for the weights of the run in `run_folder`, in shared memory if there is any.

    Every start of the run uses the same folder, so what a killed process left in memory is freed. The run folder must
    be locked.
    """
    folder = run_folder / "weights"
    if os.access(shared_memory, os.W_OK | os.X_OK):
        name = hashlib.blake2b(str(run_folder.resolve()).encode(), digest_size=8).hexdigest()
        folder = shared_memory / f"{_prefix()}{name}"
    try:
        _remove(folder)
        folder.mkdir(mode=0o700)
        held = os.open(folder, os.O_RDONLY)
        # The folder is new, so this can only wait for a short check by `left_behind`.
        fcntl.flock(held, fcntl.LOCK_EX)
    except OSError as error:
        raise WeightsError(
            f"the folder {folder} for weights cannot be made: {error}",
            remedy="free some space there, or remove what is in its place",
        ) from error
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(held)


def left_behind(shared_memory: Path = SHARED_MEMORY) -> dict[Path, int]:
    """The folders of this user's dead runs, with their sizes in bytes. The next start of such a run frees its folder,
    but the run may never be started again."""
    sizes = {folder: _size_if_left(folder) for folder in sorted(shared_memory.glob(f"{_prefix()}*"))}
    return {folder: size for folder, size in sizes.items() if size is not None}


def remove_held(shared_memory: Path = SHARED_MEMORY) -> None:
    """Remove the folders that this process holds, because it ends at once. Only Linux says which these are, and others
    have no such folders in memory."""
    for descriptor in OPEN_FILES.glob("*"):
        with suppress(OSError):
            held = descriptor.readlink()
            if held.parent == shared_memory and held.name.startswith(_prefix()):
                shutil.rmtree(held, ignore_errors=True)


def _size_if_left(folder: Path) -> int | None:
    """The folder's size, or None if a process holds it, if it was removed, or if it is no folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return sum(file.lstat().st_size for file in folder.iterdir())
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _prefix() -> str:
    return f"loopwright-{os.getuid()}-"


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)
