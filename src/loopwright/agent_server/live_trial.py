"""One trial that is not over: its stages, how it is stopped, and who waits for news of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from loopwright.agent_server.reading import Submission
from loopwright.agents.trials.wire import TrialState, TrialStatus
from loopwright.core.redaction import Redactor
from loopwright.errors import AgentServerError, LoopwrightError, ProgramError, SetupError, TrialLostError
from loopwright.ports import PreparedProgram, ProgramRunner
from loopwright.types import Failed, ProgramOutput, Scored

REMEDIES = {
    TrialState.CANCELLED: ("was cancelled", "submit another one"),
    TrialState.ABANDONED: ("was abandoned: nobody asked for it", "ask for its status from time to time"),
    TrialState.LOST: ("was lost: the agent server was ended", "nothing to do: a run makes the rollout again"),
}


class LiveTrial:
    """`changed` is called with every new status. `ending` is what becomes of the trial if its task is cancelled."""

    def __init__(self, id: str, submission: Submission, changed: Callable[[TrialStatus], None]) -> None:
        self.status = TrialStatus(id, TrialState.QUEUED, label=submission.label)
        self.submission = submission
        self.ending = TrialState.LOST
        self.seen = time.monotonic()
        self.watchers = 0
        self.task: asyncio.Task[None] | None = None
        self._changed = changed
        self._news = asyncio.Event()
        self._since = time.monotonic()
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self._redact = Redactor((submission.endpoint.api_key, *submission.variables.values()))
        self._outcome = TrialStatus(id, TrialState.DONE)

    async def run(self, make: Callable[[Submission], ProgramRunner]) -> None:
        """Run all stages. What it ended with is told by `over`."""
        self._enter(TrialState.SET_UP)
        try:
            async with make(self.submission).prepared(self.submission.request) as program:
                await self._run_and_grade(program)
        except SetupError as error:
            self._outcome = replace(self._outcome, error=self._clean(error))

    async def _run_and_grade(self, program: PreparedProgram) -> None:
        error: LoopwrightError | None = None
        try:
            await self._run(program)
        except (ProgramError, SetupError, TrialLostError) as raised:
            error = raised
        told = replace(
            self._outcome,
            error=None if error is None else self._clean(error),
            out_of_time=self._stopped and program.output.exit_code is None,
            output=self._clean_output(program.output),
        )
        if not (error is None or isinstance(error, ProgramError)):
            self._outcome = told
            return
        self._enter(TrialState.GRADE, told)
        reward: Scored | Failed | None = None
        if error is None or self.submission.grades_failures:
            reward = await program.reward(out_of_time=told.out_of_time)
        self._outcome = replace(told, reward=self._clean_reward(reward), output=self._clean_output(program.output))

    async def _run(self, program: PreparedProgram) -> None:
        """Run the program. `stop` ends it, and that is no cancellation of the trial."""
        self._running = asyncio.create_task(program.run(self.submission.endpoint, self._begun))
        try:
            await asyncio.wait({self._running})
        except asyncio.CancelledError:
            self._running.cancel()
            await asyncio.wait({self._running})
            # Nobody asks what became of it.
            _ = self._running.cancelled() or self._running.exception()
            raise
        if not self._running.cancelled():
            self._running.result()

    def _begun(self) -> None:
        if self.status.state is TrialState.SET_UP:
            self._enter(TrialState.RUN)

    def stop(self) -> None:
        """The trial's time is up. A program that has not started yet will not."""
        if self.status.state in (TrialState.QUEUED, TrialState.SET_UP):
            self.end(TrialState.CANCELLED)
        elif self.status.state is TrialState.RUN and self._running is not None:
            self._stopped = True
            self._running.cancel()

    def end(self, ending: TrialState) -> None:
        """End whatever it does. The first reason counts."""
        if self.task is not None and not self.task.cancelling():
            self.ending = ending
            self.task.cancel()

    def over(self, broken: BaseException | None, cancelled: bool) -> TrialStatus:
        """The task has ended: what has become of the trial."""
        state, told = TrialState.DONE, self._outcome
        if cancelled:
            state = self.ending
            words, remedy = REMEDIES[state]
            told = replace(told, error=AgentServerError(f"the trial {self.status.id} {words}", remedy=remedy))
        elif broken is not None:
            state = TrialState.LOST
            words = f"the agent server failed: {type(broken).__name__} {broken}"
            told = replace(told, error=AgentServerError(self._redact(words), remedy="see the agent server's log"))
        self._enter(state, told)
        return self.status

    async def left(self, state: TrialState, seconds: float) -> TrialStatus:
        """The status as soon as it is not in that state, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while self.status.state is state:
                    await self._news.wait()
        except TimeoutError:
            pass
        return self.status

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While its owner waits for it, the trial is not abandoned."""
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1
            self.seen = time.monotonic()

    def _enter(self, state: TrialState, told: TrialStatus | None = None) -> None:
        now, before = time.monotonic(), self.status
        seconds = {**before.seconds, before.state.value: now - self._since}
        stage = before.stage if state.is_over else state
        self._since = now
        self.status = replace(told or before, state=state, stage=stage, label=before.label, seconds=seconds)
        self._changed(self.status)
        self._news.set()
        self._news = asyncio.Event()

    def _clean(self, error: LoopwrightError) -> LoopwrightError:
        return type(error)(self._redact(error.message), remedy=error.remedy)

    def _clean_output(self, output: ProgramOutput) -> ProgramOutput:
        return replace(output, text=self._redact(output.text), verifier=self._redact(output.verifier))

    def _clean_reward(self, reward: Scored | Failed | None) -> Scored | Failed | None:
        return replace(reward, detail=self._redact(reward.detail)) if isinstance(reward, Failed) else reward
