"""Runs the programs of rollouts on agent servers.

A trial is on one server only. A server that may have got it is asked again under the same id, and never another one
instead: two programs would talk to one session. If its server dies, the rollout fails as infrastructure, and its next
attempt has a new session and another server (R2).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.trials.client import DRAINING, FULL, HOLD_SECONDS, AgentServer
from loopwright.agents.trials.pool import PooledServer, ServerPool
from loopwright.agents.trials.wire import TrialState, TrialStatus
from loopwright.config import ProgramReward, ServerRunnerConfig
from loopwright.core.together import to_its_end
from loopwright.errors import AgentServerError, ConfigError, LoopwrightError, RefusedError, SetupError
from loopwright.ports import Endpoint
from loopwright.types import Failed, ProgramOutput, RolloutRequest, Scored

T = TypeVar("T")

log = logging.getLogger("loopwright")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0


class ServerRunner:
    """A `ProgramRunner` over one or several agent servers. Use it as `async with`. Without `grades` a judger scores its
    programs. With `grades_failures` a program that failed is graded too."""

    def __init__(
        self,
        config: ServerRunnerConfig,
        reward: ProgramReward | None,
        host: ProgramHost,
        *,
        grades: bool = True,
        grades_failures: bool = False,
    ) -> None:
        self.name = config.shown_name
        key = host.named.get(config.key_env)
        if not key:
            raise ConfigError(
                f"the variable {config.key_env} holds no key of the agent servers", remedy="set it to their key"
            )
        self.wait_seconds = config.wait_seconds
        self.runner = config.runner.model_dump(mode="json")
        by_program = None if config.brings_reward else reward
        self.reward = None if by_program is None else by_program.model_dump(mode="json")
        self.grades = grades
        self.variables = {name: host.named[name] for name in config.runner.pass_env if name in host.named}
        self.grades_failures = grades_failures
        self.label = host.owner.run
        self.pool = ServerPool([AgentServer(url, key) for url in config.urls])
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for server in self.pool.servers:
                await stack.enter_async_context(server.client)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def prepared(self, request: RolloutRequest) -> AsyncIterator[ServerProgram]:
        program = ServerProgram(self, request)
        try:
            yield program
        finally:
            await to_its_end(program.leave())


class ServerProgram:
    """A `PreparedProgram`: one trial on one server. The server sets it up when it is run."""

    def __init__(self, runner: ServerRunner, request: RolloutRequest) -> None:
        self._runner = runner
        self._request = request
        self._id = f"t-{secrets.token_hex(16)}"
        self._server: PooledServer | None = None
        self._status: TrialStatus | None = None
        self._stack = AsyncExitStack()

    @property
    def output(self) -> ProgramOutput:
        told = self._status.output if self._status is not None else None
        return told or ProgramOutput(self._runner.name)

    async def run(self, endpoint: Endpoint, begun: Callable[[], None] = lambda: None) -> None:
        try:
            await self._submit(endpoint)
            await self._until(lambda state: state is TrialState.RUN or state.has_run)
            begun()
            status = await self._until(lambda state: state.has_run)
        except asyncio.CancelledError:
            # Its time is up, or nobody wants it any more. In both cases its program ends now.
            await to_its_end(self._stop())
            raise
        if status.error is not None:
            raise status.error

    async def reward(self, *, out_of_time: bool = False) -> Scored | Failed | None:
        status = await self._until(lambda state: state.is_over)
        if status.state is not TrialState.DONE:
            raise _lost(status)
        return status.reward

    async def leave(self) -> None:
        """Cancel the trial if it is not over. A server that cannot be reached ends it by itself."""
        if self._server is not None and (self._status is None or not self._status.state.is_over):
            with suppress(LoopwrightError):
                await self._server.client.cancel(self._id)
        await self._stack.aclose()

    async def _submit(self, endpoint: Endpoint) -> None:
        """Submit the trial to a server with room. A full queue is waited for as long as the rollout has time."""
        runner, key = self._runner, self._request.key
        rollout = f"{self._request.split}/{key.task_set}/{key.draw}/{key.member}"
        pauses, unreachable_since = _Pauses(), None
        now = asyncio.get_running_loop().time
        while True:
            try:
                server = await runner.pool.choose(rollout)
                unreachable_since = None
                if server is not None and await self._submitted(server, endpoint):
                    runner.pool.remember(rollout, server)
                    return
            except AgentServerError:
                if self._server is not None:
                    # It may have the trial, so no other one gets it.
                    raise
                unreachable_since = unreachable_since or now()
                if now() - unreachable_since > runner.wait_seconds:
                    raise
            await pauses.next()

    async def _submitted(self, server: PooledServer, endpoint: Endpoint) -> bool:
        """Whether the server took the trial. False: nothing has reached it, or it has no room."""
        runner = self._runner
        sent = False

        async def submit() -> None:
            nonlocal sent
            try:
                await server.client.submit(
                    self._id,
                    self._request.task,
                    runner=runner.runner,
                    base_url=endpoint.base_url,
                    api_key=endpoint.api_key,
                    model=endpoint.model,
                    anthropic_url=endpoint.anthropic_url,
                    reward=runner.reward,
                    variables=runner.variables,
                    grades=runner.grades,
                    grades_failures=runner.grades_failures,
                    label=runner.label,
                )
            except RefusedError as error:
                self._server = None
                raise SetupError(error.message, remedy=error.remedy) from error
            except AgentServerError as error:
                refused = error.facts.get("status") in (FULL, DRAINING)
                if refused or (not sent and not error.facts.get("sent")):
                    raise _NotTakenError(unreachable=not refused) from error
                sent = True
                raise

        with ExitStack() as counted:
            counted.enter_context(server.counted())
            # From now on the server may have it.
            self._server = server
            try:
                await self._retried(server, submit)
            except _NotTakenError as error:
                self._server = None
                server.known_at = float("-inf")
                if error.unreachable:
                    runner.pool.rest(server)
                return False
            self._stack.enter_context(counted.pop_all())
        return True

    async def _until(self, reached: Callable[[TrialState], bool]) -> TrialStatus:
        """Wait until the trial has reached a state."""
        server, status = self._server, self._status
        if server is None:
            raise _lost(TrialStatus(self._id, TrialState.CANCELLED))
        while status is None or not reached(status.state):
            after = TrialState.QUEUED if status is None else status.state
            ask = partial(server.client.status, self._id, after=after, seconds=HOLD_SECONDS)
            status = await self._retried(server, ask)
            self._status = status
        return status

    async def _stop(self) -> None:
        if self._server is not None:
            with suppress(LoopwrightError):
                self._status = await self._server.client.stop(self._id)

    async def _retried(self, server: PooledServer, ask: Callable[[], Awaitable[T]]) -> T:
        """The server's answer. A server that cannot be reached is asked again, up to `wait_seconds`; then the rollout
        is lost, and the server rests."""
        now, pauses = asyncio.get_running_loop().time, _Pauses()
        deadline = now() + self._runner.wait_seconds
        while True:
            try:
                return await ask()
            except AgentServerError as error:
                if error.facts.get("status") != 0:
                    raise
                if now() > deadline:
                    self._runner.pool.rest(server)
                    raise
            await pauses.next()


class _NotTakenError(Exception):
    """The server certainly does not have the trial."""

    def __init__(self, *, unreachable: bool) -> None:
        super().__init__()
        self.unreachable = unreachable


class _Pauses:
    """Pauses between tries, each longer than the one before."""

    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE_SECONDS

    async def next(self) -> None:
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, LONGEST_PAUSE_SECONDS)


def _lost(status: TrialStatus) -> LoopwrightError:
    return status.error or AgentServerError(
        f"the trial {status.id} was {status.state}", remedy="nothing to do: the rollout is made again"
    )
