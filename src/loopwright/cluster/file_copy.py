"""A copy of the user's files on a node, for one actor."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COPY = "loopwright-files-"
FRESH_SECONDS = 60.0
"""A copy that is younger than this may belong to an actor that has not locked it yet."""


@contextmanager
def copied(packed: bytes, base: Path) -> Iterator[Path]:
    """A folder with the files of the zip file `packed`, which come from `base`. What else is in `base` on this node, if
    anything is, is linked. The folder is deleted at the end; if this process is killed, by the next one that needs a
    copy."""
    _remove_left_behind(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=COPY))
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(folder)
        _link_the_rest(base, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _remove_left_behind(folder: Path) -> None:
    for left in folder.glob(f"{COPY}*"):
        try:
            if time.time() - left.stat().st_mtime < FRESH_SECONDS:
                continue
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass  # its actor lives
        finally:
            os.close(handle)


def _link_the_rest(base: Path, folder: Path) -> None:
    """What was not copied is found where it is: data that the user's code opens. Code is not: it is of another time."""
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        with suppress(OSError):
            for entry in sorted((base / inside).iterdir()):
                if entry.name not in (*folders, *names) and entry.suffix != ".py" and entry.name != "__pycache__":
                    (folder / inside / entry.name).symlink_to(entry)
