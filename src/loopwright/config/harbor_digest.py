"""A hash of a task of Harbor. Whoever reads the task keeps it, and whoever runs the task later finds out by it whether
it is still the same."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ENVIRONMENT = "environment"
"""Links in this folder are copied as they are, so what they lead to is no part of the task."""


def task_digest(folder: Path) -> str:
    """A hash of the names, the kinds and the contents of everything in a task's folder. A link counts with what it
    leads to. Raises OSError with the file's name if something cannot be read."""
    told = hashlib.blake2b(digest_size=16)
    for path in sorted(_contents(folder)):
        name = path.relative_to(folder)
        told.update(f"{name}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            told.update(b"link\0" + os.readlink(path).encode("utf-8", "surrogateescape") + b"\0")
            if ENVIRONMENT in name.parts[:-1]:
                continue
        if path.is_file():
            is_program = stat.S_IMODE(path.stat().st_mode) & 0o111
            told.update(b"program\0" if is_program else b"file\0")
            with path.open("rb") as file:
                told.update(hashlib.file_digest(file, "blake2b").digest())
    return told.hexdigest()


def _contents(folder: Path, inside_of: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All paths below the folder, also through links to folders, but not round in a circle."""
    real = folder.resolve()
    for place, folders, names in os.walk(folder, onerror=_raised):
        paths = [Path(place, name) for name in (*names, *folders)]
        yield from paths
        for path in paths if ENVIRONMENT not in Path(place).parts[len(folder.parts) :] else ():
            if path.is_symlink() and path.is_dir():
                target = path.resolve()
                if not any(above.is_relative_to(target) for above in (*inside_of, real)):
                    yield from _contents(path, (*inside_of, real))


def _raised(error: OSError) -> NoReturn:
    raise error
