"""A whole agent server that listens on a port. Before it does, it removes what a killed predecessor has left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.agent_server.app import AgentServerApp
from loopwright.agent_server.reading import Submission
from loopwright.agent_server.store import TrialStore
from loopwright.agent_server.trials import ServerLimits, Trials
from loopwright.agents.runners.command import CommandRunner
from loopwright.agents.runners.harbor import HarborRunner
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.marks import VARIABLE, Owner
from loopwright.config import CommandRunnerConfig, HarborRunnerConfig
from loopwright.core.environment import child_environment
from loopwright.errors import ConfigError, LoopwrightError, SetupError
from loopwright.ports import ProgramRunner
from loopwright.serve.listen import listening
from loopwright.serve.marked_processes import ProcessTable

log = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server runs programs: paths of runners start from `base`. `store` is its file."""

    base: Path
    store: Path

    def __post_init__(self) -> None:
        if self.base.resolve().is_relative_to(self.store.resolve().parent):
            raise ConfigError(
                f"the store {self.store} is beside the programs' files: programs in a sandbox must see those files, "
                "and must not see the store",
                remedy="put the store into a folder of its own",
            )

    def host(self, environment: Mapping[str, str]) -> ProgramHost:
        """This machine, as the server's programs find it. The server is known by its store: another one that is
        started with the same store is its successor."""
        workspace = Path(tempfile.gettempdir()) / f"loopwright-{os.getuid()}"
        owner = Owner.here(self.store)
        return ProgramHost(
            self.base.resolve(), self.store.resolve().parent, child_environment(environment), {}, owner, workspace
        )


@asynccontextmanager
async def open_agent_server(
    place: ServerPlace,
    limits: ServerLimits,
    environment: Mapping[str, str],
    *,
    key: str,
    host: str = "127.0.0.1",
    port: int = 0,
    names: tuple[str, ...] = (),
) -> AsyncIterator[tuple[Trials, int]]:
    """Listen, and give the trials and the port. `names` are further host names that clients use."""
    programs = place.host(environment)
    with TrialStore(place.store) as store:
        await asyncio.to_thread(programs.clear_left_behind, ProcessTable(VARIABLE))
        if lost := store.lose_unfinished():
            log.warning("%d trials of an earlier server are lost", lost)
        trials = Trials(store, lambda submission: trial_runner(submission, programs), limits)
        app = AgentServerApp(trials, key=key)
        sweeping = asyncio.create_task(trials.sweep())
        try:
            async with listening(
                app, host=host, port=port, names=names, key=key, own_keys=True, refuse=app.refuse
            ) as bound:
                try:
                    yield trials, bound
                finally:
                    # Those who wait for news hear that their trials are lost before the connections are closed.
                    await trials.close()
        finally:
            sweeping.cancel()
            await asyncio.wait({sweeping})


def trial_runner(submission: Submission, host: ProgramHost) -> ProgramRunner:
    """The runner of a submitted trial. It sees the variables that came with the trial, and none of the server's."""
    seen = replace(host, named=submission.variables)
    try:
        match submission.runner:
            case HarborRunnerConfig() as runner:
                return HarborRunner(runner, seen, grades=submission.grades, grades_failures=submission.grades_failures)
            case CommandRunnerConfig() as runner:
                return CommandRunner(runner, submission.reward, seen)
    except LoopwrightError as error:
        raise SetupError(error.message, remedy=error.remedy) from error
