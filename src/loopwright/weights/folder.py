"""The folder in shared memory through which the weights of a run go. At most one process has it, and holds its lock.

The kernel lets go of the lock when the process dies, however that happens: a folder that nobody holds was left behind.
Nothing heavy is imported here: `loopwright doctor` looks for such folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopwright.errors import WeightsError

SHARED_MEMORY = Path("/dev/shm")
"""A folder in memory on Linux. Elsewhere the run folder does."""


@contextmanager
def weights_folder(run_folder: Path, shared_memory: Path = SHARED_MEMORY) -> Iterator[Path]:
    """A private folder for the weights of the run in `run_folder`, in memory if there is any.

    It is the same for every start of the run, which must be locked: what a killed one left in memory is freed.
    """
    folder = run_folder / "weights"
    if os.access(shared_memory, os.W_OK | os.X_OK):
        name = hashlib.blake2b(str(run_folder.resolve()).encode(), digest_size=8).hexdigest()
        folder = shared_memory / f"{_prefix()}{name}"
    try:
        _remove(folder)
        folder.mkdir(mode=0o700)
        held = os.open(folder, os.O_RDONLY)
        # It is new, so this waits for nobody but a glance of `left_behind`.
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
    """The folders of this user's runs that died, with their sizes in bytes. The next start of such a run frees its own,
    but it may never come."""
    sizes = {folder: _size_if_left(folder) for folder in sorted(shared_memory.glob(f"{_prefix()}*"))}
    return {folder: size for folder, size in sizes.items() if size is not None}


def _size_if_left(folder: Path) -> int | None:
    """None when somebody holds it, or has removed it meanwhile, or when it is no folder."""
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
