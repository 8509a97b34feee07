"""All trials of a server: which run, which wait, and what has become of the others.

The invariant: an id is run once, whatever happens. So an id is stored before its trial starts, and a stored id is never
started again. Deadlines are those of whoever submitted a trial; the server only ends trials that nobody asks for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import orjson

from loopwright.agent_server.events import Announcements
from loopwright.agent_server.live_trial import LiveTrial
from loopwright.agent_server.metrics import TrialMetrics
from loopwright.agent_server.reading import Submission
from loopwright.agent_server.store import TrialStore, lost
from loopwright.agents.trials.client import ServerLoad
from loopwright.agents.trials.wire import TrialState, TrialStatus
from loopwright.core.together import GRACE_SECONDS
from loopwright.errors import RefusedError, RunError
from loopwright.ports import ProgramRunner

log = logging.getLogger("loopwright")

SWEEP_SECONDS = 1.0
KEPT_RUNNERS = 64

MakeRunner = Callable[[Submission], ProgramRunner]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """`slots` trials run at once, and `queue` more wait. A trial ends when nobody has asked for it for
    `abandoned_seconds`. Results are kept for `keep_seconds`."""

    slots: int
    queue: int
    abandoned_seconds: float = 120.0
    keep_seconds: float = 7 * 24 * 3600.0


class Trials:
    """`make` makes the runner of a trial; trials with the same settings share one."""

    def __init__(self, store: TrialStore, make: MakeRunner, limits: ServerLimits) -> None:
        self._store = store
        self._make = make
        self._limits = limits
        self._live: dict[str, LiveTrial] = {}
        self._slots = asyncio.Semaphore(limits.slots)
        self._runners: OrderedDict[bytes, ProgramRunner] = OrderedDict()
        self.announcements = Announcements()
        self.metrics = TrialMetrics()
        self.draining = False

    def submit(self, id: str, submission: Submission) -> TrialStatus:
        """Queue a trial. The same trial again changes nothing; another one under the same id is refused."""
        known, digest, used = self._store.find(id)
        if used:
            if digest not in (None, submission.digest):
                raise _refused(f"the id {id} was used for another trial", "choose an id of its own", 409)
            if known is None:
                raise _forgotten(id)
            return self._live[id].status if id in self._live else self._kept(id)
        if self.draining:
            raise _refused("this server takes no more trials", "use another one", 503)
        if len(self._live) >= self._limits.slots + self._limits.queue:
            raise _refused("the queue is full", "submit it later, or to another server", 429)
        trial = LiveTrial(id, submission, self._changed)
        self._store.add(trial.status, submission.digest)
        self._live[id] = trial
        trial.task = asyncio.create_task(self._run(trial))
        trial.task.add_done_callback(partial(self._over, trial))
        self.announcements.tell(trial.status)
        return trial.status

    async def status(self, id: str, after: TrialState | None, seconds: float) -> TrialStatus:
        if (trial := self._live.get(id)) is None:
            return self._kept(id)
        with trial.watched():
            return trial.status if after is None else await trial.left(after, seconds)

    async def stop(self, id: str) -> TrialStatus:
        """End a trial's program because its time is up. It is graded. Returns when the program has ended."""
        if (trial := self._live.get(id)) is None:
            return self._kept(id)
        with trial.watched():
            trial.stop()
            while not (status := trial.status).state.has_run:
                if await trial.left(status.state, GRACE_SECONDS) is status:
                    break
            return trial.status

    async def cancel(self, id: str, ending: TrialState = TrialState.CANCELLED) -> TrialStatus:
        """End a trial. Returns when nothing of it is left. An id that was never submitted can not be any more."""
        if (trial := self._live.get(id)) is not None:
            trial.end(ending)
            if trial.task is not None:
                await asyncio.wait({trial.task}, timeout=GRACE_SECONDS)
            return trial.status
        if not self._store.find(id)[2]:
            self._store.add(TrialStatus(id, TrialState.CANCELLED), None)
        return self._kept(id)

    def all(self, *, also_over: bool) -> list[TrialStatus]:
        return self._store.latest() if also_over else [trial.status for trial in self._live.values()]

    def watch(self, id: str) -> LiveTrial | None:
        return self._live.get(id)

    def load(self) -> ServerLoad:
        queued = self.states()[TrialState.QUEUED.value]
        limits, live = self._limits, len(self._live)
        room = 0 if self.draining else max(0, limits.slots + limits.queue - live)
        return ServerLoad(limits.slots, live - queued, queued, room, self.draining)

    def states(self) -> Counter[str]:
        return Counter(trial.status.state.value for trial in self._live.values())

    async def sweep(self) -> None:
        """End what nobody asks for, and forget old results, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for trial in [*self._live.values()]:
                if not trial.watchers and now - trial.seen > self._limits.abandoned_seconds:
                    log.warning("the trial %s was abandoned, and is ended", trial.status.id)
                    trial.end(TrialState.ABANDONED)
            try:
                self._store.forget(time.time() - self._limits.keep_seconds)
            except RunError:
                # It is in the log, and told to the next who writes.
                continue

    async def close(self) -> None:
        """End everything that runs. It is lost."""
        self.draining = True
        tasks = [trial.task for trial in self._live.values() if trial.task is not None]
        for trial in [*self._live.values()]:
            trial.end(TrialState.LOST)
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        self.announcements.close()

    async def _run(self, trial: LiveTrial) -> None:
        async with self._slots:
            await trial.run(self._runner)

    def _runner(self, submission: Submission) -> ProgramRunner:
        sections = (submission.runner.model_dump(), submission.reward and submission.reward.model_dump())
        how = (dict(submission.variables), submission.grades, submission.grades_failures)
        key = orjson.dumps((*sections, *how), option=orjson.OPT_NON_STR_KEYS, default=str)
        if key not in self._runners:
            self._runners[key] = self._make(submission)
            if len(self._runners) > KEPT_RUNNERS:
                self._runners.popitem(last=False)
        self._runners.move_to_end(key)
        return self._runners[key]

    def _over(self, trial: LiveTrial, task: asyncio.Task[None]) -> None:
        broken = None if task.cancelled() else task.exception()
        if broken is not None:
            log.error("the trial %s ended by a bug", trial.status.id, exc_info=broken)
        try:
            status = trial.over(broken, task.cancelled())
        except RunError:
            # Its row stays as it is, and so it is lost.
            status = trial.status
        self._live.pop(trial.status.id, None)
        self.metrics.over(status.state, None if status.error is None else type(status.error).__name__, status.seconds)

    def _changed(self, status: TrialStatus) -> None:
        self._store.change(status)
        self.announcements.tell(status)

    def _kept(self, id: str) -> TrialStatus:
        status, _, used = self._store.find(id)
        if status is not None:
            return status if status.state.is_over else lost(status)
        if used:
            raise _forgotten(id)
        raise _refused(f"there is no trial {id}", "submit it first", 404)


def _forgotten(id: str) -> RefusedError:
    return _refused(f"the result of trial {id} is not kept any more", "choose a new id", 410)


def _refused(message: str, remedy: str, status: int) -> RefusedError:
    return RefusedError(message, remedy=remedy, status=status)
