"""What a server has on this machine: its processes, its files in shared memory, and a folder for its temporary files.

vLLM's processes outlive one another, a process that is killed leaves its shared memory behind, and sockets stay after
every end. So the guard writes what it sees of them to a state file, and ends all of it with the server. If the guard
itself was killed, `sweep` does so from the state file.

Nothing is ended or removed that is not the server's own. A process is its own if it carries the server's mark, or was
seen with it (the same number and start time), or was started by one of these. A file is its own if one of these
processes had it open, it is still the same file, and no other process has it open. The folder is named by the mark.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.serve.marked_processes import PROC, Process, ProcessTable, kill_all, pids, read_proc, started_at

VARIABLE = "LOOPWRIGHT_ENGINE"
SHARED_MEMORY = "/dev/shm/"
NAMES = ("psm_", "sem.")
"""Python's shared memory, and semaphores."""
BOOT = PROC / "sys/kernel/random/boot_id"
GUARD_SECONDS = 20.0
"""A guard that is asked to end has done so by then."""
KILL_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file in shared memory. Its name may be used again, so device and inode are part of it."""

    path: str
    device: int
    inode: int

    @classmethod
    def at(cls, path: str) -> SharedFile | None:
        """The file of this path, or None if it is gone or of another user."""
        try:
            found = os.lstat(path)
        except OSError:
            return None
        return cls(path, found.st_dev, found.st_ino) if found.st_uid == os.getuid() else None


class Leftovers:
    """The processes and files of one server. `look` sees them, and keeps the state file up to date."""

    def __init__(
        self, state: Path, mark: str, folder: Path, guard: tuple[int, str], known: list[tuple[int, str]]
    ) -> None:
        self.mark = mark
        self.folder = folder
        self.guard = guard
        self._state = state
        self._known = set(known)
        self._files = set[SharedFile]()
        # The guard adopts what the server leaves without a parent. So every child of the guard is the server's.
        self._table = ProcessTable(VARIABLE, dict.fromkeys([guard, *known], mark))

    @classmethod
    def of_new_server(cls, state: Path) -> Leftovers:
        """For the guard, before it starts a server."""
        mark = secrets.token_hex(8)
        folder = Path(tempfile.gettempdir(), f"loopwright-vllm-{mark}")
        made = cls(state, mark, folder, (os.getpid(), started_at(os.getpid()) or "0"), [])
        made._write()
        folder.mkdir(mode=0o700)
        return made

    @classmethod
    def read(cls, state: Path) -> Leftovers | None:
        """What a guard has written. None if there is no such file, or if the machine was started again since."""
        try:
            said = json.loads(state.read_text())
        except (FileNotFoundError, ValueError):
            return None
        if said["boot"] != _boot():
            return None
        pid, started = said["guard"]
        known = [(one, when) for one, when in said["processes"]]
        made = cls(state, said["mark"], Path(said["folder"]), (pid, started), known)
        made._files = {SharedFile(*file) for file in said["files"]}
        return made

    def look(self) -> list[Process]:
        """The server's living processes. What is new is written to the state file."""
        living = [one for one in self._table.of(self.mark) if (one.pid, one.started) != self.guard]
        known = {(one.pid, one.started) for one in living}
        files = self._files | {file for one in living for file in shared_files(one.pid)}
        if (known, files) != (self._known, self._files):
            self._known, self._files = known, files
            # A full disk must not end the guard: it knows all of this itself.
            with suppress(OSError):
                self._write()
        return living

    def end(self) -> int:
        """Kill all processes, and remove the files. Returns how many processes they were.

        The state file stays if a process does: even SIGKILL may have to wait for a disk.
        """
        killed, deadline = set[int](), time.monotonic() + KILL_SECONDS
        while (living := self.look()) and time.monotonic() < deadline:
            kill_all(one.pid for one in living)
            killed.update(one.pid for one in living)
            time.sleep(LOOK_AGAIN_SECONDS)
        if not living:
            self._remove_files()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._state.unlink(missing_ok=True)
        return len(killed)

    def _remove_files(self) -> None:
        used = {file for pid in pids() for file in shared_files(pid)} if self._files else set()
        for file in self._files - used:
            if SharedFile.at(file.path) == file:
                with suppress(FileNotFoundError):
                    os.unlink(file.path)

    def _write(self) -> None:
        """The file is always whole."""
        said = {
            "mark": self.mark,
            "folder": str(self.folder),
            "boot": _boot(),
            "guard": self.guard,
            "processes": sorted(self._known),
            "files": sorted((file.path, file.device, file.inode) for file in self._files),
        }
        draft = self._state.with_name(f".{self._state.name}.part")
        draft.write_text(json.dumps(said))
        draft.rename(self._state)


def sweep(state: Path) -> int:
    """End what is left of a server whose guard was killed, and remove its files. Returns how many processes were
    killed.

    Without a state file there is nothing to do. A guard that still lives is asked to end first.
    """
    left = Leftovers.read(state)
    if left is None:
        state.unlink(missing_ok=True)
        return 0
    _end_guard(*left.guard)
    return left.end()


def _end_guard(pid: int, started: str) -> None:
    for number, seconds in ((signal.SIGTERM, GUARD_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        if _lives(pid, started):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while _lives(pid, started) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_SECONDS)


def _lives(pid: int, started: str) -> bool:
    """Whether this very process is there, and not just waiting for its parent to notice its end."""
    return started_at(pid) == started and b") Z " not in read_proc(pid, "stat")


def _boot() -> str:
    """Start times count from here. Another one means that all processes and all shared memory are gone."""
    return BOOT.read_text().strip() if BOOT.exists() else ""


def shared_files(pid: int) -> set[SharedFile]:
    """The files that a process has mapped or open, if they are of a kind that a server makes.

    They are known by their inodes: glibc maps a semaphore under another name than the one that it then gets.
    """
    try:
        device = os.stat(SHARED_MEMORY).st_dev
    except OSError:
        return set()
    if not (inodes := set(_open_inodes(pid, device))):
        return set()
    paths = [os.path.join(SHARED_MEMORY, name) for name in os.listdir(SHARED_MEMORY) if name.startswith(NAMES)]
    return {file for path in paths if (file := SharedFile.at(path)) is not None and file.inode in inodes}


def _open_inodes(pid: int, device: int) -> Iterator[int]:
    """Of the files in shared memory that a process has mapped or open."""
    for line in read_proc(pid, "maps").splitlines():
        if SHARED_MEMORY.encode() in line:
            _, _, _, where, inode, _ = line.split(None, 5)
            major, minor = where.split(b":")
            if os.makedev(int(major, 16), int(minor, 16)) == device:
                yield int(inode)
    with suppress(OSError):
        for descriptor in os.listdir(f"{PROC}/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(link := f"{PROC}/{pid}/fd/{descriptor}").startswith(SHARED_MEMORY):
                    yield os.stat(link).st_ino
