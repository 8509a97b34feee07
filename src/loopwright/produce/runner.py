"""Running many rollouts at once, for training and for evaluation alike.

Rollouts start in the order given, at most `concurrency` of their agents run at a time, and each is handed on the moment
it is finished, or earlier, unscored, when its judge takes its time. With a lockstep engine the runner always says how
many agents are about to ask something, so that the engine's batches, and with them the last bits of every logprob, are
the same in every run (D3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from loopwright.core.seeds import derive_seed
from loopwright.core.together import together
from loopwright.ports import AgentLoop, GroupJudger, Judger, Lockstep, Sampler
from loopwright.produce.filtering import Filter
from loopwright.produce.judging import score, score_together
from loopwright.produce.rollout import RecordingPolicy, run_rollout
from loopwright.types import (
    Failed,
    FailureCause,
    OnAgentError,
    Rollout,
    RolloutKey,
    Sampling,
    Task,
    TokenChain,
    Unscored,
)

ANOTHER_MAY_HELP = frozenset({FailureCause.INFRA, FailureCause.AGENT})
"""Causes for which a rollout is made again. A judge that failed has had its own retries, and the episode is sound; a
task that does not fit never will."""

PATIENCE_SECONDS = 1.0
"""How long a finished episode may exist in memory alone, while its judge is at work."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an agent may take, and how often one episode is put before its judger."""

    agent_timeout_seconds: float = 600.0
    judge_attempts: int = 2


@dataclass(frozen=True, slots=True)
class TaskSetRuntime:
    """One task set, ready to run: where its tasks come from, who works on them, who scores them, and which groups
    are trained: all of them without a filter. Its rollouts may be interrupted if its loop is `resumable`."""

    name: str
    sampler: Sampler
    loop: AgentLoop
    judger: Judger | GroupJudger
    sampling: Sampling
    weight: float = 1.0
    resumable: bool = False
    on_agent_error: OnAgentError = "fail"
    filter: Filter | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to be made. `split` keeps the seeds of training and of each evaluation apart.

    With `judge_only`, a rollout that was made before, its episode is not made again but only put before its judge. With
    `resume_from`, a partial rollout of the same attempt, it goes on from the tokens there.
    """

    key: RolloutKey
    task: Task
    task_set: TaskSetRuntime
    split: str = "train"
    judge_only: Rollout | None = None
    resume_from: Rollout | None = None

    def again(self) -> Job:
        """The next attempt at the same member: with another seed, because the first one failed."""
        return replace(self, key=replace(self.key, attempt=self.key.attempt + 1), resume_from=None)


class PolicyFactory(Protocol):
    """Makes the policy of one rollout from the prefix of its request ids and its seeded sampling."""

    def __call__(
        self, prefix: str, sampling: Sampling, *, resumable: bool, resume_from: Sequence[TokenChain]
    ) -> RecordingPolicy: ...


OnRollout = Callable[[Rollout], Awaitable[None]]


class RolloutRunner:
    """Runs jobs. It holds no state between calls of `run`."""

    def __init__(
        self,
        policies: PolicyFactory,
        *,
        seed: int,
        limits: Limits,
        concurrency: int,
        max_attempts: int,
        lockstep: Lockstep | None = None,
    ) -> None:
        self._policies = policies
        self._seed = seed
        self._limits = limits
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._lockstep = lockstep

    async def run(
        self, jobs: Sequence[Job], on_rollout: OnRollout, on_unscored: OnRollout | None = None
    ) -> list[Rollout]:
        """The last attempt at each job, in the order of `jobs`. `on_rollout` sees every attempt as it ends.

        `on_unscored` sees the episodes that are not judged at once: because the judge takes its time, or because it
        judges whole groups, which is for the caller to ask for. The latter are returned unscored.

        Failed ones are tried again together, after the others: when a rollout starts does then not depend on how long
        another one was judged.
        """
        done: dict[int, Rollout] = {}
        todo = dict(enumerate(jobs))
        while todo:
            finished = await self._run_once(list(todo.values()), on_rollout, on_unscored)
            done |= zip(todo, finished, strict=True)
            todo = {i: job.again() for i, job in todo.items() if self.worth_another(done[i])}
        return [done[i] for i in range(len(jobs))]

    def worth_another(self, rollout: Rollout) -> bool:
        """Whether the rollout failed in a way that may pass, and has attempts left."""
        failed = rollout.reward
        may_help = isinstance(failed, Failed) and failed.cause in ANOTHER_MAY_HELP
        return may_help and rollout.key.attempt + 1 < self._max_attempts

    async def judge_group(self, rollouts: Sequence[Rollout], judger: GroupJudger) -> list[Rollout]:
        """The rollouts of one task, judged together."""
        return await score_together(rollouts, judger, self._limits.judge_attempts)

    async def _run_once(
        self, jobs: Sequence[Job], on_rollout: OnRollout, on_unscored: OnRollout | None
    ) -> list[Rollout]:
        gate = _Gate(sum(job.judge_only is None for job in jobs), self._concurrency, self._lockstep)

        async def one(job: Job) -> Rollout:
            rollout = await self._rollout(job, gate, on_unscored)
            if not isinstance(rollout.reward, Unscored):
                await on_rollout(rollout)
            return rollout

        try:
            return await together(one(job) for job in jobs)
        finally:
            gate.close()

    async def _rollout(self, job: Job, gate: _Gate, on_unscored: OnRollout | None) -> Rollout:
        made, judger = job.judge_only or await self._run_agent(job, gate), job.task_set.judger
        if not made.awaits_judge:
            return made
        if isinstance(judger, GroupJudger):
            if on_unscored is not None:
                await on_unscored(made)
            return made
        # A rollout that is judged again is stored already.
        return await self._judged(made, judger, None if job.judge_only else on_unscored)

    async def _run_agent(self, job: Job, gate: _Gate) -> Rollout:
        key = job.key
        seed = derive_seed(self._seed, job.split, key.task_set, key.draw, key.member, key.attempt)
        partial = job.resume_from.episode if job.resume_from else None
        policy = self._policies(
            str(key),
            replace(job.task_set.sampling, seed=seed),
            resumable=job.task_set.resumable,
            resume_from=partial.chains if partial else (),
        )
        return await run_rollout(
            key,
            job.task,
            loop=job.task_set.loop,
            policy=policy,
            timeout_seconds=self._limits.agent_timeout_seconds,
            on_agent_error=job.task_set.on_agent_error,
            slot=gate.slot(),
            resume_from=job.resume_from,
        )

    async def _judged(self, made: Rollout, judger: Judger, on_unscored: OnRollout | None) -> Rollout:
        keeping: list[asyncio.Future[None]] = []

        def keep() -> None:
            if on_unscored is not None:
                keeping.append(asyncio.ensure_future(on_unscored(made)))

        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, keep)
        try:
            return await score(made, judger, self._limits.judge_attempts)
        except asyncio.CancelledError:
            # The run is stopping: without its reward the episode is still worth keeping.
            if not keeping:
                keep()
            raise
        finally:
            timer.cancel()
            # Before anyone hears of the reward: it is stored with what is kept here.
            for kept in keeping:
                await kept


class _Gate:
    """Lets agents run, `concurrency` at a time, and tells a lockstep engine how many to wait for.

    An agent that ends while others wait for its slot does not lower that number: the next in line takes its place
    before the engine may step again.
    """

    def __init__(self, agents: int, concurrency: int, lockstep: Lockstep | None) -> None:
        self._left = agents
        self._concurrency = concurrency
        self._lockstep = lockstep
        self._slots = asyncio.Semaphore(concurrency)
        self._expect()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        async with self._slots:
            try:
                yield
            finally:
                self._left -= 1
                self._expect()

    def close(self) -> None:
        """Also when the batch was cancelled half-way: an engine must not wait for agents that are gone."""
        self._left = 0
        self._expect()

    def _expect(self) -> None:
        if self._lockstep is not None:
            self._lockstep.expect(min(self._left, self._concurrency))
