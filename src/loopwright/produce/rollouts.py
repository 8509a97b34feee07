"""Runs many rollouts at once, for training and for evaluation.

Rollouts start in the order given, as slots become free. Each is handed on as soon as it has a reward or has failed. An
episode whose judger is slow is also handed on before that, unscored; so is a partial one. A failed rollout is tried
again. With a lockstep engine all failed rollouts are tried again together, so that every run has the same batches (D3).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loopwright.core.in_flight import RolloutsInFlight, Stage
from loopwright.core.redaction import Redactor, with_clean_reward, without_secrets
from loopwright.core.seeds import derive_seed
from loopwright.core.together import together
from loopwright.errors import WorkerLostError
from loopwright.ports import Judger, Lockstep, RolloutWorker
from loopwright.produce.judging import judged
from loopwright.produce.settings import Limits
from loopwright.produce.slots import NotStartedError, Slots
from loopwright.produce.worker_watch import WorkerWatch
from loopwright.types import (
    Failed,
    FailureCause,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Split,
    Task,
    Timing,
    Unscored,
)

RETRIED = frozenset({FailureCause.INFRA, FailureCause.SETUP, FailureCause.AGENT, FailureCause.VERIFIER})
"""Causes for which a rollout is made again. A judger that failed had its own retries, and its episode is sound; a
verifier needs the folder of its program, which is gone. A task that does not fit the context will not fit the next time
either."""

PATIENCE_SECONDS = 1.0
"""How long a finished episode may exist only in memory while its judger works."""

OnRollout = Callable[[Rollout], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to be made. `split` and `mode` keep the seeds of training and of each evaluation apart.

    With `judge_only`, a rollout that was made before, no agent runs: only the judger is asked. `resume_from` is a
    partial rollout of the same attempt. Attempts are counted from `first_attempt` on: when an expired group is made
    again, its earlier attempts do not count.
    """

    key: RolloutKey
    task: Task
    sampling: Sampling
    judger: Judger
    split: Split = Split.TRAIN
    mode: str | None = None
    judge_only: Rollout | None = None
    resume_from: Rollout | None = None
    first_attempt: int = 0

    def again(self) -> Job:
        """The next attempt of the same member. It has a different seed, because this attempt failed."""
        return replace(self, key=replace(self.key, attempt=self.key.attempt + 1), judge_only=None, resume_from=None)

    def request(self, run_seed: int, seconds: float) -> RolloutRequest:
        """The request for the worker."""
        key, label = self.key, self.split if self.mode is None else f"{self.split}/{self.mode}"
        seed = derive_seed(run_seed, label, key.task_set, key.draw, key.member, key.attempt)
        return RolloutRequest(self.split, key, self.task, replace(self.sampling, seed=seed), seconds, self.resume_from)


class RolloutRunner:
    """Runs jobs on a worker. It holds no state between calls of `run`. `redact` knows the secrets that no rollout may
    hold. `in_flight` is told which rollouts run."""

    def __init__(
        self,
        worker: RolloutWorker,
        *,
        seed: int,
        limits: Limits,
        concurrency: int,
        max_attempts: int,
        lockstep: Lockstep | None = None,
        redact: Redactor | None = None,
        in_flight: RolloutsInFlight | None = None,
    ) -> None:
        self._worker = worker
        self._in_flight = RolloutsInFlight() if in_flight is None else in_flight
        self._watch = WorkerWatch(worker, limits.worker_silence_seconds)
        self._seed = seed
        self._limits = limits
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._lockstep = lockstep
        self._redact = redact or Redactor()

    def slots(self, on_release: Callable[[], None] = lambda: None) -> Slots:
        """Slots for the agents, as many as may run at a time."""
        return Slots(self._concurrency, self._lockstep, on_release)

    @property
    def in_lockstep(self) -> bool:
        """Whether the engine runs in lockstep, so that groups that start together must be filled together."""
        return self._lockstep is not None

    def run(
        self,
        jobs: Sequence[Job],
        on_rollout: OnRollout,
        on_unscored: OnRollout | None = None,
        slots: Slots | None = None,
    ) -> Coroutine[Any, Any, list[Rollout | None]]:
        """The last attempt of each job, in the order of `jobs`. `on_rollout` sees every attempt as it ends.

        `on_unscored` sees the episodes that are not judged at once: because the judger is slow, because it judges whole
        groups (the caller asks it), or because they are partial. The latter two are returned unscored. A job that its
        `slots` turned away returns None.
        """
        # Not a coroutine itself, so that there is one coroutine less between the caller and the jobs.
        kept = _Kept(slots if slots is not None else self.slots(), on_rollout, on_unscored)
        jobs = [self._after_lost(job) for job in jobs]
        if self.in_lockstep:
            return self._in_waves(jobs, kept)
        return together(self._to_the_end(job, kept) for job in jobs)

    def worth_another(self, rollout: Rollout, first_attempt: int = 0) -> bool:
        """Whether the rollout failed for a cause that a retry may avoid, and has attempts left."""
        failed = rollout.reward
        may_pass = isinstance(failed, Failed) and failed.cause in RETRIED
        return may_pass and rollout.key.attempt + 1 - first_attempt < self._max_attempts

    async def judge_group(self, rollouts: Sequence[Rollout], judger: Judger) -> list[Rollout]:
        """The rollouts of one task, judged together."""
        scored = await judged(rollouts, judger, self._limits.judge_attempts)
        return [with_clean_reward(rollout, self._redact) for rollout in scored]

    def _after_lost(self, job: Job) -> Job:
        """The job, without the attempts that were lost with an earlier process of the run."""
        lost = 0 if job.judge_only else self._worker.first_attempt(job.split, job.key) - job.key.attempt
        if not lost:
            return job
        key = replace(job.key, attempt=job.key.attempt + lost)
        return replace(job, key=key, first_attempt=job.first_attempt + lost)

    async def _to_the_end(self, job: Job, kept: _Kept, *, retry: bool = True) -> Rollout | None:
        """The last attempt of a job, judged if it can be; None if the job was turned away before it began."""
        while True:
            made = job.judge_only
            if made is None:
                started = time.time()
                try:
                    async with kept.slots.slot(job.key):
                        with self._in_flight.stage(Stage.AGENT, job.split, job.key) as seen, self._watch.over(job.key):
                            made = await self._worker.run(job.request(self._seed, self._limits.agent_timeout_seconds))
                    before = made.engines
                    made = replace(made, engines=(*before, *(one for one in seen.engines if one not in before)))
                except NotStartedError:
                    return None
                except WorkerLostError as error:
                    made = _lost(job, error, started)
                made = without_secrets(made, self._redact)
            if made.awaits_judge and not job.judger.judges_groups:
                # A rollout that is judged again is stored already.
                with self._in_flight.stage(Stage.JUDGE, job.split, job.key):
                    made = await self._judged(made, job.judger, None if job.judge_only else kept.on_unscored)
            elif kept.on_unscored is not None and isinstance(made.reward, Unscored):
                await kept.on_unscored(made)
            if not isinstance(made.reward, Unscored):
                await kept.on_rollout(made)
            self._worker.stored(job.split, job.key)
            if not (retry and self.worth_another(made, job.first_attempt)):
                return made
            job = job.again()

    async def _in_waves(self, jobs: Sequence[Job], kept: _Kept) -> list[Rollout | None]:
        """Try failed rollouts again together, after the others have ended. So the start of a rollout does not depend on
        how long the judging of another one took."""
        done: dict[int, Rollout | None] = {}
        todo = dict(enumerate(jobs))
        while todo:
            with kept.slots.wave(sum(job.judge_only is None for job in todo.values())):
                ended = await together(self._to_the_end(job, kept, retry=False) for job in todo.values())
            made = dict(zip(todo, ended, strict=True))
            done |= made
            todo = {
                place: todo[place].again()
                for place, rollout in made.items()
                if rollout is not None and self.worth_another(rollout, todo[place].first_attempt)
            }
        return [done[place] for place in range(len(jobs))]

    async def _judged(self, made: Rollout, judger: Judger, on_unscored: OnRollout | None) -> Rollout:
        keeping: list[asyncio.Future[None]] = []

        def keep() -> None:
            if on_unscored is not None:
                keeping.append(asyncio.ensure_future(on_unscored(made)))

        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, keep)
        try:
            (scored,) = await judged([made], judger, self._limits.judge_attempts)
            return with_clean_reward(scored, self._redact)
        except asyncio.CancelledError:
            # The run is stopping. Keep the episode without its reward.
            if not keeping:
                keep()
            raise
        finally:
            timer.cancel()
            # Wait for this before the reward is handed on: the reward is stored in the row that is written here.
            for kept in keeping:
                await kept


@dataclass(frozen=True, slots=True)
class _Kept:
    """What one call of `run` was given: the slots of its agents, and who receives their rollouts."""

    slots: Slots
    on_rollout: OnRollout
    on_unscored: OnRollout | None


def _lost(job: Job, error: WorkerLostError, started: float) -> Rollout:
    """The rollout of a worker that was lost: a failure of the infrastructure."""
    failed = Failed(FailureCause.INFRA, type(error).__name__, error.message)
    return Rollout(job.key, job.task, None, failed, Timing(started, time.time() - started))
