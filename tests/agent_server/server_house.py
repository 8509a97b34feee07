"""An agent server in this process, with programs of the test's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright import AgentServer, Task
from loopwright.agent_server.server import ServerPlace, open_agent_server
from loopwright.agent_server.trials import ServerLimits, Trials
from loopwright.agents.runners.marks import VARIABLE
from loopwright.agents.trials.wire import TrialState
from loopwright.serve.marked_processes import ProcessTable

KEY = "the-servers-own-key"
TASK = Task.ask("t1", "Say hello", truth="hello")
EXIT = {"kind": "exit_code"}
MODEL_KEY = "the-models-secret-key"


@dataclass(frozen=True, slots=True)
class House:
    """`folder` is the base of the server's programs."""

    folder: Path
    trials: Trials
    client: AgentServer

    async def submit(self, id: str, script: str, **settings: Any) -> str:
        reward = settings.pop("reward", EXIT)
        runner = {"kind": "command", "command": ["sh", "-c", script], **settings.pop("runner", {})}
        where: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "api_key": MODEL_KEY}
        return await self.client.submit(id, TASK, runner=runner, reward=reward, **where, **settings)

    async def until(self, id: str, state: TrialState) -> None:
        async with asyncio.timeout(60):
            while (status := await self.client.status(id)).state is not state:
                assert not status.state.is_over, status
                await self.client.status(id, after=status.state, seconds=20)

    def ran(self, id: str) -> int:
        """How often the program of a trial was started, if it runs `echo >> ran-ID` in the base."""
        file = self.folder / f"ran-{id}"
        return len(file.read_text().splitlines()) if file.exists() else 0


@asynccontextmanager
async def house(
    folder: Path, *, slots: int = 2, queue: int = 2, abandoned: float = 60.0, keep: float = 3600.0
) -> AsyncIterator[House]:
    base = folder / "base"
    base.mkdir(exist_ok=True)
    limits, place = ServerLimits(slots, queue, abandoned, keep), ServerPlace(base, folder / "store" / "trials.sqlite")
    async with (
        open_agent_server(place, limits, os.environ, key=KEY) as (trials, port),
        AgentServer(f"http://127.0.0.1:{port}", KEY) as client,
    ):
        yield House(base, trials, client)


def left(folder: Path) -> list[object]:
    """What the server of this folder has left: processes and folders."""
    host = ServerPlace(folder / "base", folder / "store" / "trials.sqlite").host(os.environ)
    run = host.owner.run
    processes: list[object] = [one for one in ProcessTable(VARIABLE).marked() if one.mark.startswith(run)]
    return processes + list(host.workspace.glob(f"{run}-*"))
