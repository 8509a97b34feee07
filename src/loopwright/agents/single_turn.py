"""The simplest agent: ask once."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.ports import Policy
from loopwright.types import Message, Task


class SingleTurn:
    """Sends the task's messages, with an optional system message first, and takes the model's one answer."""

    def __init__(self, system: str | None = None) -> None:
        self._opening: tuple[Message, ...] = () if system is None else ({"role": "system", "content": system},)

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        messages = [*self._opening, *task.messages]
        reply = await policy.reply(messages)
        return [*messages, reply.message]
