"""The agent with tools: it asks the model, makes the calls that the model asks for, and returns their results to it,
until the model answers without a call or a budget is used up. In both cases its work is graded (R2)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from loopwright.agents.tool_call import BoundTool, ToolBelt
from loopwright.core.timeouts import ClockTimeout
from loopwright.errors import EngineError, OutOfTimeError
from loopwright.ports import Policy
from loopwright.types import Message, Task


@dataclass(frozen=True, slots=True)
class ToolBudget:
    """What one rollout may use. The length of one reply is a sampling setting. None means no limit.

    Seconds in which the agent waits for engines that answer nobody, as during weight updates, do not count.
    """

    turns: int
    tokens: int | None = None
    seconds: float | None = None
    turn_seconds: float | None = None


class ToolSource(Protocol):
    """Provides the tools of one rollout. A source that is a context manager is open as long as the run."""

    def open(self, task: Task, state: dict[str, Any]) -> AbstractAsyncContextManager[Sequence[BoundTool]]: ...


class ToolLoop:
    """An `AgentLoop`. Enter it before it runs: some of its tools live as long as the run."""

    def __init__(
        self, sources: Sequence[ToolSource], *, budget: ToolBudget, system: str | None = None, parallel: bool = True
    ) -> None:
        self._sources = sources
        self._budget = budget
        self._opening: tuple[Message, ...] = () if system is None else ({"role": "system", "content": system},)
        self._parallel = parallel
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for source in self._sources:
            if isinstance(source, AbstractAsyncContextManager):
                await self._stack.enter_async_context(source)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        messages = [*self._opening, *task.messages]
        async with self.open(task) as belt:
            if not await self._in_time(messages, belt, policy):
                policy.out_of_budget()
        return messages

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[ToolBelt]:
        """The tools of one rollout of `task`, with their own state."""
        state: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(source.open(task, state)) for source in self._sources]
            yield ToolBelt([tool for tools in opened for tool in tools], parallel=self._parallel)

    async def _in_time(self, messages: list[Message], belt: ToolBelt, policy: Policy) -> bool:
        """Whether the model finished before the time was up. Its replies until then are in `messages`."""
        asked = len(messages)
        try:
            async with _limit(self._budget.seconds, policy) as whole:
                return await self._converse(messages, belt, policy, whole)
        except (TimeoutError, OutOfTimeError):
            if len(messages) == asked:
                raise EngineError(
                    "the model gave no reply within the agent's time", remedy="raise agent.max_seconds or turn_seconds"
                ) from None
            return False

    async def _converse(self, messages: list[Message], belt: ToolBelt, policy: Policy, whole: ClockTimeout) -> bool:
        left = self._budget.tokens
        for _ in range(self._budget.turns):
            if left is not None and left <= 0:
                return False
            async with _limit(self._budget.turn_seconds, policy) as turn:
                seconds = min(whole.left(), turn.left())
                reply = await policy.reply(messages, tools=belt.offered, max_new_tokens=left, seconds=seconds)
                messages.append(reply.message)
                if not reply.tool_calls:
                    return True
                left = None if left is None else left - reply.tokens
                messages.extend(await belt.answer(reply.tool_calls))
        return False


def _limit(seconds: float | None, policy: Policy) -> ClockTimeout:
    return ClockTimeout(math.inf if seconds is None else seconds, policy.own_seconds)
