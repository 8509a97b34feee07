"""Running many rollouts at once, for training and for evaluation alike.

Rollouts start in the order given, as slots become free, and each is handed on the moment it is finished, or earlier,
unscored, when its judge takes its time or it was interrupted. A failed one is tried again; with a lockstep engine only
together with the others that failed, so that who runs beside whom is the same in every run (D3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from loopwright.core.redaction import Redactor
from loopwright.core.seeds import derive_seed
from loopwright.core.together import together
from loopwright.ports import GroupJudger, Judger, Lockstep
from loopwright.produce.jobs import Job, Limits, PolicyFactory
from loopwright.produce.judging import score, score_together
from loopwright.produce.redacting import without_secrets
from loopwright.produce.rollout import run_rollout
from loopwright.produce.slots import NotStartedError, Slots
from loopwright.types import Failed, FailureCause, Rollout, Unscored

ANOTHER_MAY_HELP = frozenset({FailureCause.INFRA, FailureCause.AGENT})
"""Causes for which a rollout is made again. A judge that failed has had its own retries, and the episode is sound; a
task that does not fit never will."""

PATIENCE_SECONDS = 1.0
"""How long a finished episode may exist in memory alone, while its judge is at work."""


OnRollout = Callable[[Rollout], Awaitable[None]]


class RolloutRunner:
    """Runs jobs. It holds no state between calls of `run`.

    `served` makes the policies of agents that talk to a gateway; without it, there are no such agents. `held` says for
    how many seconds the engines have answered nobody. `redact` knows the secrets that no rollout may hold.
    """

    def __init__(
        self,
        policies: PolicyFactory,
        *,
        seed: int,
        limits: Limits,
        concurrency: int,
        max_attempts: int,
        lockstep: Lockstep | None = None,
        served: PolicyFactory | None = None,
        held: Callable[[], float] = lambda: 0.0,
        redact: Redactor | None = None,
    ) -> None:
        self._policies = policies
        self._served = served or policies
        self._seed = seed
        self._limits = limits
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._lockstep = lockstep
        self._held = held
        self._redact = redact or Redactor()

    def slots(self, on_release: Callable[[], None] = lambda: None) -> Slots:
        """Slots for as many agents as may run at a time."""
        return Slots(self._concurrency, self._lockstep, on_release)

    @property
    def in_lockstep(self) -> bool:
        """Whether what starts together has to be handed over together."""
        return self._lockstep is not None

    async def run(
        self,
        jobs: Sequence[Job],
        on_rollout: OnRollout,
        on_unscored: OnRollout | None = None,
        slots: Slots | None = None,
    ) -> list[Rollout]:
        """The last attempt at each job, in the order of `jobs`. `on_rollout` sees every attempt as it ends.

        `on_unscored` sees the episodes that are not judged at once: because the judge takes its time, because it judges
        whole groups, which is for the caller to ask for, or because they are partial. The latter two are returned
        unscored. A job that was turned away by its `slots` has no rollout; without `slots`, there are own ones.
        """
        running = _Run(self, slots if slots is not None else self.slots(), on_rollout, on_unscored)
        if self.in_lockstep:
            return await running.in_waves(jobs)
        ended = await together(running.to_the_end(job) for job in jobs)
        return [rollout for rollout in ended if rollout is not None]

    def worth_another(self, rollout: Rollout, first_attempt: int = 0) -> bool:
        """Whether the rollout failed in a way that may pass, and has attempts left."""
        failed = rollout.reward
        may_help = isinstance(failed, Failed) and failed.cause in ANOTHER_MAY_HELP
        return may_help and rollout.key.attempt + 1 - first_attempt < self._max_attempts

    async def judge_group(self, rollouts: Sequence[Rollout], judger: GroupJudger) -> list[Rollout]:
        """The rollouts of one task, judged together."""
        judged = await score_together(rollouts, judger, self._limits.judge_attempts)
        return [without_secrets(rollout, self._redact) for rollout in judged]

    async def attempt(self, job: Job, slots: Slots, on_unscored: OnRollout | None) -> Rollout:
        """One attempt at a job, judged if it can be. Raises NotStartedError when it was turned away."""
        made, judger = job.judge_only or await self._run_agent(job, slots), job.task_set.own_judger
        if made.awaits_judge and judger is not None:
            # A rollout that is judged again is stored already.
            return await self._judged(made, judger, None if job.judge_only else on_unscored)
        if on_unscored is not None and isinstance(made.reward, Unscored):
            await on_unscored(made)
        return made

    async def _run_agent(self, job: Job, slots: Slots) -> Rollout:
        key = job.key
        seed = derive_seed(self._seed, job.split, key.task_set, key.draw, key.member, key.attempt)
        partial = job.resume_from.episode if job.resume_from else None
        policies = self._served if job.task_set.served else self._policies
        policy = policies(
            str(key),
            replace(job.task_set.sampling, seed=seed),
            resumable=job.task_set.resumable,
            resume_from=partial.chains if partial else (),
        )
        made = await run_rollout(
            key,
            job.task,
            loop=job.task_set.loop,
            policy=policy,
            timeout_seconds=self._limits.agent_timeout_seconds,
            on_agent_error=job.task_set.on_agent_error,
            slot=slots.slot(key),
            held=self._held,
            resume_from=job.resume_from,
            train=job.task_set.train,
        )
        return without_secrets(made, self._redact)

    async def _judged(self, made: Rollout, judger: Judger, on_unscored: OnRollout | None) -> Rollout:
        keeping: list[asyncio.Future[None]] = []

        def keep() -> None:
            if on_unscored is not None:
                keeping.append(asyncio.ensure_future(on_unscored(made)))

        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, keep)
        try:
            judged = await score(made, judger, self._limits.judge_attempts)
            return without_secrets(judged, self._redact)
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


class _Run:
    """One call of `run`: its slots, and who is told what."""

    def __init__(
        self, runner: RolloutRunner, slots: Slots, on_rollout: OnRollout, on_unscored: OnRollout | None
    ) -> None:
        self._runner = runner
        self._slots = slots
        self._on_rollout = on_rollout
        self._on_unscored = on_unscored

    async def to_the_end(self, job: Job) -> Rollout | None:
        """The last attempt at a job, or None when it is turned away before that."""
        try:
            while self._runner.worth_another(made := await self._once(job), job.first_attempt):
                job = job.again()
        except NotStartedError:
            return None
        return made

    async def in_waves(self, jobs: Sequence[Job]) -> list[Rollout]:
        """Failed ones are tried again together, after the others: when a rollout starts does then not depend on how
        long another one was judged."""
        done: dict[int, Rollout] = {}
        todo = dict(enumerate(jobs))
        while todo:
            with self._slots.wave(sum(job.judge_only is None for job in todo.values())):
                ended = await together(self._once(job) for job in todo.values())
            done |= zip(todo, ended, strict=True)
            worth = self._runner.worth_another
            todo = {i: job.again() for i, job in todo.items() if worth(done[i], job.first_attempt)}
        return [done[i] for i in range(len(jobs))]

    async def _once(self, job: Job) -> Rollout:
        rollout = await self._runner.attempt(job, self._slots, self._on_unscored)
        if not isinstance(rollout.reward, Unscored):
            await self._on_rollout(rollout)
        return rollout
