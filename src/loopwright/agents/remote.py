"""An agent that is a program of its own, behind the gateway: it is started for a task, talks to a session, and ends.

Two time limits hold, both without the seconds in which the engines answer nobody: one for everything, from the start of
the set-up, and one for the agent, from its first model call. A program that runs out of either is ended, and graded
(R2).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from loopwright.core.seeds import derive_seed
from loopwright.core.timeouts import ClockTimeout
from loopwright.errors import ConfigError, NoModelCallError, OutOfTimeError, ProgramError
from loopwright.ports import AgentResult, Policy, PreparedProgram, ProgramRunner, ServedPolicy, SessionTimes
from loopwright.types import ProgramOutput, StopReason, Task


@dataclass(frozen=True, slots=True)
class WeightedRunner:
    """A runner, and how often it is chosen compared with the others."""

    runner: ProgramRunner
    weight: float = 1.0


class RemoteLoop:
    """An `AgentLoop` over one or several runners; each rollout has one of them. Use it as `async with`.

    `max_seconds` counts from the first model call. With `grades_failures` a program that failed is graded too.
    """

    def __init__(
        self,
        runners: Sequence[WeightedRunner],
        *,
        max_seconds: float | None = None,
        max_tokens: int | None = None,
        grades_failures: bool = False,
    ) -> None:
        self._runners = runners
        self._max_seconds = math.inf if max_seconds is None else max_seconds
        self._max_tokens = max_tokens
        self._grades_failures = grades_failures
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for one in self._runners:
                if isinstance(one.runner, AbstractAsyncContextManager):
                    await stack.enter_async_context(one.runner)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def run(self, task: Task, policy: Policy) -> AgentResult:
        if not isinstance(policy, ServedPolicy):
            raise ConfigError(
                f"an agent of kind remote cannot be run with a {type(policy).__name__}",
                remedy="give it a policy that is served by a gateway",
            )
        seconds = policy.request.seconds
        total = ClockTimeout(seconds, lambda: policy.times().total)
        stop: StopReason | None = None
        program: PreparedProgram | None = None
        async with AsyncExitStack() as stack:
            try:
                async with total:
                    policy.watch_time(total.look_soon)
                    runner = self._chosen(policy.request.seed)
                    program = await stack.enter_async_context(runner.prepared(policy.request))
                    stop = await self._run(program, policy)
            except TimeoutError:
                if not total.expired():
                    raise
                stop = StopReason.BUDGET
            if program is None or (stop is StopReason.BUDGET and not policy.transcript):
                raise OutOfTimeError(
                    f"the program made no model call within {seconds:g} s",
                    remedy="raise produce.agent_timeout_seconds, or see why its start takes so long",
                )
            if not policy.transcript:
                raise _never_asked(program, task)
            times, reward = policy.times(), await program.reward(out_of_time=stop is StopReason.BUDGET)
            return AgentResult(policy.transcript, reward, stop, _timed(program.output, times))

    def _chosen(self, seed: int) -> ProgramRunner:
        weights = [one.weight for one in self._runners]
        chance = random.Random(derive_seed(seed, "runner"))
        return chance.choices(self._runners, weights)[0].runner

    async def _run(self, program: PreparedProgram, policy: ServedPolicy) -> StopReason | None:
        """Run the program within its own time. Returns BUDGET if it was ended."""
        own = ClockTimeout(self._max_seconds, lambda: policy.times().since_first_call or 0.0)
        try:
            async with policy.endpoint(max_tokens=self._max_tokens) as endpoint, own:
                await program.run(endpoint)
        except TimeoutError:
            if not own.expired():
                raise
            return StopReason.BUDGET
        except ProgramError:
            if not (self._grades_failures and policy.transcript):
                raise
        return None


def _timed(output: ProgramOutput, times: SessionTimes) -> ProgramOutput:
    ran = times.since_first_call or 0.0
    return replace(output, start_seconds=times.total - ran, run_seconds=ran)


def _never_asked(program: PreparedProgram, task: Task) -> NoModelCallError:
    wrote = program.output.text.strip()[-1000:]
    told = f"; its last output: {wrote}" if wrote else ", and wrote nothing"
    return NoModelCallError(
        f"the program ended without a model call on task {task.id!r}{told}",
        remedy="let it use OPENAI_BASE_URL or ANTHROPIC_BASE_URL, which it has in its environment",
    )
