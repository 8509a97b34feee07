"""Agents that are programs: where they run, what they may see, and what the user must know about it."""

from __future__ import annotations

import logging
from pathlib import Path

from loopwright.agents.runners.host import ProgramHost
from loopwright.config import Loaded, RunConfig
from loopwright.config.base import sections
from loopwright.core.environment import child_environment
from loopwright.types import Isolation

log = logging.getLogger("loopwright")


def program_host(loaded: Loaded) -> ProgramHost:
    """This machine, as the programs of this run find it."""
    run_folder = Path(loaded.config.trainer.run_dir)
    return ProgramHost.here(loaded.base, run_folder, child_environment(loaded.environment), loaded.secrets)


def warn_of_free_programs(config: RunConfig) -> None:
    """Say once that programs act as the user, if some do."""
    if any(getattr(section, "isolate", None) is Isolation.NONE for _, section in sections(config)):
        log.warning(
            "programs run as you: they may read and write whatever you may, and do what the model says. "
            "`isolate: bwrap` of their runner puts them into a sandbox"
        )
