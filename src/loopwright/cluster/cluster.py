"""A cluster that is open: it starts the actors of a run, keeps them running, and writes down what they say."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from loopwright.cluster.crew import Crew, OnDeath
from loopwright.cluster.host import Opening
from loopwright.cluster.remote_host import RemoteHost, launched, pickled
from loopwright.config.roles import Role


class Cluster:
    """A running cluster, which this process has joined. `address` is where the actors reach this process. The output of
    actors is written to files in `logs`, after `begin_logs`. `on_death` is told of every actor that is lost."""

    def __init__(self, address: str, logs: Path, on_death: OnDeath = lambda name, words: None) -> None:
        self.address = address
        self._logs = logs
        self._on_death = on_death
        self._early: list[tuple[str, bytes]] | None = []

    def begin_logs(self) -> None:
        """Write the output of actors from now on, and what there was so far. The first actors start before the run
        folder is opened, and until then nothing may be written to it."""
        early, self._early = self._early or [], None
        for name, output in early:
            self._write(name, output)

    @asynccontextmanager
    async def crew(
        self, role: Role, opening: Opening, what: str, *, max_silence: float | None = None
    ) -> AsyncIterator[Crew]:
        """The actors of a role, each with a part of its own that `opening` opens. `what` names the part in errors. One
        of which nothing is heard for `max_silence` seconds is lost."""
        launches = [
            (role.actor_name(number), partial(self.launch, role, number, opening, what)) for number in range(role.count)
        ]
        async with Crew.open(role.name, launches, on_death=self._on_death, max_silence=max_silence) as crew:
            yield crew

    def launch(self, role: Role, number: int, opening: Opening, what: str) -> AbstractAsyncContextManager[RemoteHost]:
        """One actor of a role, while the context is open."""
        name = role.actor_name(number)
        return launched(
            name,
            pickled(opening, what),
            self._options(role, number),
            memory=role.memory,
            on_output=partial(self._write, name),
        )

    def _options(self, role: Role, number: int) -> Mapping[str, Any]:
        # Ray would take 1 CPU to place an actor and 0 to run it if none were given.
        return {"num_cpus": role.cpus, "num_gpus": role.gpus, "memory": role.memory or 0}

    def _write(self, name: str, output: bytes) -> None:
        if self._early is not None:
            self._early.append((name, output))
            return
        self._logs.mkdir(parents=True, exist_ok=True)
        file = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        with (self._logs / f"{file}.log").open("ab") as opened:
            opened.write(output)
