"""The folders of one trial: made, filled from a template, and removed.

The invariant: when `made` or `removed` returns or raises, also by cancellation, no thread works on the folders.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.core.together import to_its_end
from loopwright.errors import SetupError

PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class TrialFolders:
    """Where one program may write."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def make(self, stop: threading.Event, template: Path | None, without: Sequence[Path]) -> None:
        """Make all of them; `work` becomes a copy of `template`. Folders in `without` are not copied. Ends early with
        OSError after `stop`."""
        private_folder(self.root.parent)
        self.root.mkdir(mode=PRIVATE)
        self.renew()
        if template is None:
            self.work.mkdir()
        else:
            _copy(template.resolve(), self.work, without, stop)

    def renew(self) -> None:
        """Make `home` and `tmp` empty."""
        for folder in (self.home, self.tmp):
            remove(folder)
            folder.mkdir(mode=PRIVATE)


async def made(folders: TrialFolders, template: Path | None, without: Sequence[Path] = ()) -> None:
    """Make the folders in a thread. If this is cancelled, the thread stops after the file that it copies."""
    stop = threading.Event()
    making = asyncio.ensure_future(asyncio.to_thread(folders.make, stop, template, without))
    try:
        await asyncio.shield(making)
    except asyncio.CancelledError:
        stop.set()
        await to_its_end(_ended(making))
        raise


async def removed(folder: Path) -> None:
    await to_its_end(asyncio.to_thread(remove, folder))


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, also what a program made read-only."""
    if folder.is_dir():
        shutil.rmtree(folder, onerror=_made_writable)
    shutil.rmtree(folder, ignore_errors=True)


def private_folder(folder: Path) -> None:
    """Make a folder that only this user can change. Raises SetupError if another user made it: its name is no
    secret."""
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SetupError(f"{folder} belongs to somebody else", remedy="remove it, or set TMPDIR to another folder")
    if stat.S_IMODE(status.st_mode) != PRIVATE:
        folder.chmod(PRIVATE)


def _copy(template: Path, to: Path, without: Sequence[Path], stop: threading.Event) -> None:
    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder, name) in without]

    def copy(source: str, target: str) -> None:
        if stop.is_set():
            raise _StoppedError
        shutil.copy2(source, target)

    shutil.copytree(template, to, symlinks=True, ignore=left_out, copy_function=copy)


class _StoppedError(Exception):
    """Nobody needs the copy any more."""


async def _ended(work: asyncio.Future[None]) -> None:
    await asyncio.wait({work})
    # Nobody asks what became of it.
    work.exception()


def _made_writable(call: Callable[..., Any], path: str, error: object) -> None:
    """Try again what `rmtree` could not do, with the folder and its parent writable."""
    try:
        for folder in (os.path.dirname(path), path):
            if not os.path.islink(folder) and os.path.isdir(folder):
                os.chmod(folder, PRIVATE)
        if call in (os.unlink, os.rmdir):
            call(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return
