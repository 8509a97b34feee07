"""Writes files that are complete or do not exist: data is flushed to disk before the file gets its name."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: after a crash there is the old file or the new one."""
    draft = draft_of(path)
    draft.write_text(text, encoding="utf-8")
    flush(draft)
    draft.replace(path)
    flush(path.parent)


def draft_of(path: Path) -> Path:
    """The temporary name of a file that is not complete yet. A crash may leave it there."""
    return path.with_name(f".{path.name}.tmp")


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, and the folder itself, to disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush(Path(parent, name))
        flush(Path(parent))


def flush(path: Path) -> None:
    """Flush one file, or the entries of one folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
