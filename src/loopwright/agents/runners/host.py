"""This machine as the host of programs: where they run, what they inherit, and what a killed run has left on it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.runners.folders import private_folder, remove
from loopwright.agents.runners.marks import Owner, kill_left_behind
from loopwright.errors import SetupError
from loopwright.serve.marked_processes import ProcessTable

log = logging.getLogger("loopwright")

INHERITED = frozenset({"PATH", "LANG", "TZ", "TERM", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})
INHERITED_PREFIXES = ("LC_", "SSL_CERT_", "CURL_CA_", "REQUESTS_CA_", "NODE_EXTRA_CA_")


@dataclass(frozen=True, slots=True)
class ProgramHost:
    """`base` is the folder of the config, `run_folder` that of the run. `environment` is what the user's programs may
    inherit, and `named` are the variables that the config names."""

    base: Path
    run_folder: Path
    environment: Mapping[str, str]
    named: Mapping[str, str]
    owner: Owner
    workspace: Path

    @classmethod
    def here(
        cls, base: Path, run_folder: Path, environment: Mapping[str, str], named: Mapping[str, str]
    ) -> ProgramHost:
        workspace = Path(tempfile.gettempdir()) / f"loopwright-{os.getuid()}"
        return cls(base, run_folder, environment, named, Owner.here(run_folder), workspace)

    @property
    def home(self) -> Path | None:
        """The user's home, if it is a folder that can be hidden."""
        home = Path(self.environment.get("HOME") or "/").resolve()
        return home if home.is_dir() and home != Path("/") else None

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Folders that a program in a sandbox must not see: the run's, with its keys and everybody's rollouts, and the
        other trials'."""
        return (self.run_folder.resolve(), self.workspace.resolve())

    def readable(self, programs: Iterable[str], also: Iterable[str] = ()) -> tuple[Path, ...]:
        """Folders that programs in a sandbox need, wherever they are: the config's, ours, their own, and `also`."""
        found = [shutil.which(self.program(program), path=self._path()) for program in programs]
        own = [folder for path in found if path is not None for folder in _installation(Path(path))]
        named = [(self.base / name).resolve() for name in also]
        folders = (self.base.resolve(), Path(sys.prefix), Path(sys.base_prefix), *own, *named)
        # A folder that holds the whole home would show all of it.
        return tuple(folder for folder in folders if not self.home_is_in(folder))

    def home_is_in(self, folder: Path) -> bool:
        """Whether the user's home is this folder, or inside of it."""
        return self.home is not None and self.home.is_relative_to(folder)

    def program(self, name: str) -> str:
        """The program as it can be started from any folder: a path is relative to the config."""
        return str(self.base / name) if "/" in name else name

    def found(self, name: str) -> str:
        """The program, if it exists. Raises SetupError."""
        program = self.program(name)
        if shutil.which(program, path=self._path()) is None:
            raise SetupError(f"there is no program {name!r}", remedy="give its path, or put it on the PATH")
        return program

    def env(self, named: Iterable[str]) -> dict[str, str]:
        """The environment of a program: few harmless variables, and those that the config names."""
        inherited = {
            name: value
            for name, value in self.environment.items()
            if name in INHERITED or name.startswith(INHERITED_PREFIXES)
        }
        return {**inherited, "PATH": self._path(), **{name: self.named[name] for name in named if name in self.named}}

    def clear_left_behind(self, table: ProcessTable) -> None:
        """End the programs of killed processes of this run, and remove their folders."""
        killed = kill_left_behind(self.owner, table)
        private_folder(self.workspace)
        folders = [path for path in self.workspace.iterdir() if self.owner.left_behind(path.name)]
        for folder in folders:
            remove(folder)
        if killed or folders:
            words = "a killed process of this run left %d folders of programs and %d processes behind; they are removed"
            log.warning(words, len(folders), killed)

    def _path(self) -> str:
        """The PATH, with the programs of this Python's environment first: `python` is the one that runs us."""
        own = os.path.dirname(sys.executable)
        return os.pathsep.join(dict.fromkeys([own, *self.environment.get("PATH", os.defpath).split(os.pathsep)]))


def _installation(program: Path) -> Iterator[Path]:
    """What belongs to an installed program: its file, its folder, and the virtual environment or `node_modules` that it
    is in."""
    for place in dict.fromkeys((program, program.resolve())):
        yield place
        yield place.parent
        for folder in place.parents:
            if folder.name == "node_modules":
                yield folder
            if (folder / "pyvenv.cfg").is_file():
                yield folder
                # The Python that the environment was made from.
                yield (folder / "bin" / "python").resolve().parent.parent
