"""What stands before a program's own command: limits of the system, and a sandbox.

`prlimit` bounds the size of each file and the memory of each process, and switches core dumps off. With bubblewrap the
program sees a read-only system, its own /tmp, home and processes, no services in /run, and may write to its own folders
only. Neither stops
a program that exploits the kernel, and the network stays open: it must reach the gateway.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loopwright.agents.runners.folders import TrialFolders
from loopwright.agents.runners.watch import MB, ProgramLimits
from loopwright.types import Isolation

PRLIMIT, BWRAP = "prlimit", "bwrap"
TMP, RUN, DEVICES, SHARED_MEMORY = Path("/tmp"), Path("/run"), Path("/dev"), Path("/dev/shm")
NEEDED_OF_RUN = [RUN / name for name in ("systemd/resolve", "current-system", "opengl-driver")]
"""The rest of /run is hidden: it has the sockets of services that start programs for the user, outside of a sandbox."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """`home` is the user's home, which a sandbox hides. `readable` are folders that a program needs although they are
    in it or in /tmp. `hidden` are folders that it must not see."""

    isolate: Isolation
    limits: ProgramLimits
    home: Path | None = None
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    @property
    def hides_tmp(self) -> bool:
        """Whether a program finds its own folder at /tmp."""
        return self.isolate is Isolation.BWRAP

    def command(self, arguments: Sequence[str], folders: TrialFolders, status: int) -> list[str]:
        """The command, confined. `status` is an open file, for `was_started`."""
        inner = list(arguments)
        if self.hides_tmp:
            inner = [*self._sandbox(folders, status), *inner]
        if shutil.which(PRLIMIT) is None:
            return inner
        limits = self.limits
        size = _allowed(resource.RLIMIT_FSIZE, limits.disk_mb * MB)
        data = _allowed(resource.RLIMIT_DATA, limits.memory_mb * MB)
        return [PRLIMIT, "--core=0", f"--fsize={size}", f"--data={data}", *inner]

    def was_started(self, status: IO[bytes]) -> bool:
        """Whether an exit code is the program's own. A sandbox that cannot be made, or that does not have the program,
        also ends with 1, but does not write an exit code into its status."""
        if not self.hides_tmp:
            return True
        status.seek(0)
        return b"exit-code" in status.read()

    def _sandbox(self, folders: TrialFolders, status: int) -> list[str]:
        """The words of bubblewrap. Later ones lie over earlier ones."""
        emptied = [RUN] if self.home is None or self.home.is_relative_to(TMP) else [RUN, self.home]
        hidden = [path for path in self.hidden if path.is_dir()]
        words = [BWRAP, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        words += [word for path in emptied for word in ("--tmpfs", str(path))]
        words += [word for path in NEEDED_OF_RUN for word in ("--ro-bind-try", str(path), str(path))]
        # What is written to shared memory counts as disk: nobody else would count it.
        words += [word for path in (TMP, SHARED_MEMORY) for word in ("--bind", str(folders.tmp), str(path))]
        readable = _inside(self.readable, [*emptied, TMP])
        words += [word for path in readable for word in ("--ro-bind", str(path), str(path))]
        words += [word for path in hidden for word in ("--tmpfs", str(path))]
        words += [word for path in (folders.home, folders.work) for word in ("--bind", str(path), str(path))]
        words += [word for path in (DEVICES, *emptied, *hidden) for word in ("--remount-ro", str(path))]
        words += ["--chdir", str(folders.work), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
        return [*words, "--die-with-parent", "--json-status-fd", str(status), "--"]


def _allowed(which: int, wanted: int) -> int:
    """The limit, or that of this process if it is lower: only root may raise it, and `prlimit` would fail."""
    hard = resource.getrlimit(which)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _inside(paths: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
    """Those paths that hiding `folders` would hide, without what is in another one of them: that is seen with it, and
    bubblewrap cannot bind a link in a folder that it has bound."""
    needed = [path for path in dict.fromkeys(paths) if any(path.is_relative_to(folder) for folder in folders)]
    return [path for path in needed if not any(path.is_relative_to(other) for other in needed if other != path)]
