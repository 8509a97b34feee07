"""What stands before a program's own command: limits of the system, and a sandbox.

`prlimit` bounds the size of each file and the memory of each process, and switches core dumps off. With bubblewrap the
program sees a read-only system, its own /tmp, home and processes, and may write to its own folders only. Neither stops
a program that exploits the kernel, and the network stays open: it must reach the gateway.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.runners.folders import TrialFolders
from loopwright.agents.runners.watch import MB, ProgramLimits
from loopwright.types import Isolation

PRLIMIT, BWRAP = "prlimit", "bwrap"
TMP = Path("/tmp")


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

    def command(self, arguments: Sequence[str], folders: TrialFolders) -> list[str]:
        """The command, confined."""
        inner = list(arguments)
        if self.hides_tmp:
            inner = [*self._sandbox(folders), *inner]
        if shutil.which(PRLIMIT) is None:
            return inner
        limits = self.limits
        return [PRLIMIT, "--core=0", f"--fsize={limits.disk_mb * MB}", f"--data={limits.memory_mb * MB}", *inner]

    def _sandbox(self, folders: TrialFolders) -> list[str]:
        """The words of bubblewrap. Later ones lie over earlier ones."""
        covered = [TMP] if self.home is None else [self.home, TMP]
        words = [BWRAP, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        words += [] if self.home is None else ["--tmpfs", str(self.home)]
        words += ["--bind", str(folders.tmp), str(TMP)]
        words += [word for path in _inside(self.readable, covered) for word in ("--ro-bind", str(path), str(path))]
        words += [word for path in self.hidden if path.is_dir() for word in ("--tmpfs", str(path))]
        words += [word for path in (folders.home, folders.work) for word in ("--bind", str(path), str(path))]
        words += ["--chdir", str(folders.work), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
        return [*words, "--die-with-parent", "--"]


def _inside(paths: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
    """Those paths that hiding `folders` would hide."""
    return [path for path in dict.fromkeys(paths) if any(path.is_relative_to(folder) for folder in folders)]
