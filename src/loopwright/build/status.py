"""What an open run is doing now, written into its folder every few seconds, for those who look at it.

The driver alone writes it, from what its parts know anyway: nobody is called for it, and nothing in it is a text of a
model or a task. A status that cannot be written never stops a run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from loopwright.build.sampling import SessionCounts
from loopwright.build.standing import Standing
from loopwright.core.in_flight import RolloutInFlight, Stage
from loopwright.ports import Learner
from loopwright.produce import AgentLoopManager
from loopwright.runs.run_status import FORMAT, WRITTEN_EVERY_SECONDS, write_status
from loopwright.track.phases import Phases
from loopwright.trainers.watchdog import Watchdog

OLDEST = 20
"""How many of the rollouts in flight are named."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The parts of a lineage that know what it is doing."""

    standing: Standing
    learner: Learner
    manager: AgentLoopManager
    watchdog: Watchdog
    phases: Phases
    sessions: SessionCounts | None = None
    """Counts the sessions of agents at a gateway, if there is one."""
    opened: float = field(default_factory=time.time)

    def now(self) -> dict[str, Any]:
        """The status as JSON values."""
        config, controller = self.standing.config, self.standing.engines.engine
        flying, cluster = controller.in_flight, self.standing.sampling.cluster
        told = {
            "format": FORMAT,
            "run": self.standing.folder.path.name,
            "lineage": self.standing.storage.lineage,
            "pid": os.getpid(),
            "at": time.time(),
            "opened": self.opened,
            "step": self.learner.version,
            "steps": config.trainer.steps,
            "trainer": config.trainer.kind.value,
            "stopping": self.watchdog.is_stopping,
            "now": [
                {"what": phase.name, "step": phase.step, "since": phase.since, "facts": dict(phase.facts)}
                for phase in self.phases.now
            ],
            "waits": [{"who": "the trainer", "for": what, "since": since} for what, since in self.watchdog.waits],
            "production": self.manager.standing(),
            "engines": controller.standing(),
            "engines_paused": controller.is_paused,
            "proof": "on" if config.rollout.engine.is_proven else "off",
            "ranks": list(self.learner.standing()),
            "sessions": None if self.sessions is None else self.sessions(),
            "crews": [] if cluster is None else cluster.standing(),
            "in_flight": {
                "agents": flying.count(Stage.AGENT),
                "judged": flying.count(Stage.JUDGE),
                "finished": flying.finished,
                "oldest": [_told(one) for one in flying.oldest(OLDEST)],
            },
        }
        shown: dict[str, Any] = self.standing.redact.value(told)
        return shown


def _told(one: RolloutInFlight) -> dict[str, Any]:
    return {
        "rollout": str(one.key),
        "split": one.split,
        "stage": one.stage.value,
        "since": one.since,
        "turn": one.turns + len(one.calls),
        "calls": len(one.calls),
        "tokens": one.tokens,
        "engines": list(one.engines),
    }


@asynccontextmanager
async def told_status(status: RunStatus) -> AsyncIterator[None]:
    """Write the status every few seconds while the block runs, and once when it ends."""
    closing = asyncio.Event()
    writing = asyncio.create_task(_keep_writing(status, closing), name="status")
    try:
        yield
    finally:
        closing.set()
        await writing


async def _keep_writing(status: RunStatus, closing: asyncio.Event) -> None:
    """It is not cancelled: its thread would go on writing."""
    is_last = False
    while not is_last:
        is_last = closing.is_set()
        # In a thread: a slow disk must not hold up the run.
        await asyncio.to_thread(write_status, status.standing.folder, status.now())
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if is_last else WRITTEN_EVERY_SECONDS):
                await closing.wait()
