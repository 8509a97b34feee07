"""Slots for agents: at most `size` of them run at a time, first come, first served, whatever their task set.

With a lockstep engine the slots always say how many agents are about to ask something, so that the engine's batches,
and with them the last bits of every logprob, are the same in every run (D3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import islice
from types import TracebackType

from loopwright.ports import Lockstep
from loopwright.types import RolloutKey


class NotStartedError(Exception):
    """An agent was turned away: production is being interrupted. It was not started, so nothing is lost."""


class Slots:
    """`on_release` is called whenever an agent has left its slot."""

    def __init__(
        self, size: int, lockstep: Lockstep | None = None, on_release: Callable[[], None] = lambda: None
    ) -> None:
        self.size = size
        self._lockstep = lockstep
        self._on_release = on_release
        self._running: dict[RolloutKey, float] = {}
        self._reserved = 0
        """Slots that are promised to agents which were woken and have not moved yet."""
        self._queue: deque[asyncio.Future[bool]] = deque()
        self._waiting = 0
        self._announced = 0
        self._is_open = True
        self._to_come = 0
        self._busy_seconds = 0.0
        self._counted_until: float | None = None

    @property
    def free(self) -> int:
        """Slots for other agents than those that are here or announced; below 0, so many have to wait."""
        return self.size - self._taken - self._waiting - self._announced

    @property
    def _taken(self) -> int:
        return len(self._running) + self._reserved

    def announce(self, agents: int) -> None:
        """So many agents will ask for a slot as soon as their tasks run."""
        self._announced += agents

    def slot(self, key: RolloutKey) -> AbstractAsyncContextManager[None]:
        """Wait for a slot and keep it. Raises NotStartedError when production is interrupted first."""
        return _Slot(self, key)

    async def _take(self, key: RolloutKey) -> None:
        self._announced = max(0, self._announced - 1)
        await self._turn()
        self._running[key] = self._count()

    def _release(self, key: RolloutKey) -> None:
        self._count()
        del self._running[key]
        self._wake_next()
        if self._lockstep is not None:
            self._to_come -= 1
            self._expect()
        self._on_release()

    @contextmanager
    def wave(self, agents: int) -> Iterator[None]:
        """Tell a lockstep engine of `agents` that come together.

        One that ends while others wait for its slot does not lower what the engine waits for: the next in line takes
        its place before the engine may step again. Whatever happens, an engine must not wait for agents that are gone.
        """
        self._to_come = agents
        self._expect()
        try:
            yield
        finally:
            self._to_come = 0
            self._expect()

    def interrupt(self) -> None:
        """Turn away who waits for a slot, and who comes, until `open`. Who has a slot keeps it."""
        self._is_open = False
        while self._queue:
            self._call(self._queue.popleft(), admitted=False)

    def open(self) -> None:
        """Let agents in again. Nobody is on their way."""
        self._is_open = True
        self._announced = 0

    def oldest(self, count: int) -> list[tuple[RolloutKey, float]]:
        """The agents that have run longest, and for how many seconds."""
        now = asyncio.get_running_loop().time()
        return [(key, now - started) for key, started in islice(self._running.items(), count)]

    @property
    def in_use(self) -> int:
        return len(self._running)

    def busy_seconds(self) -> float:
        """The seconds of all slots that were in use, since the first agent came."""
        self._count()
        return self._busy_seconds

    async def _turn(self) -> None:
        if not self._is_open:
            raise NotStartedError
        if self._taken < self.size and not self._waiting:
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._waiting += 1
        try:
            admitted = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting -= 1
            elif turn.result():
                self._reserved -= 1
                self._wake_next()
            raise
        if not admitted:
            raise NotStartedError
        self._reserved -= 1

    def _wake_next(self) -> None:
        while self._queue:
            if self._call(self._queue.popleft(), admitted=True):
                return

    def _call(self, turn: asyncio.Future[bool], *, admitted: bool) -> bool:
        """False when whoever waited has gone."""
        if turn.cancelled():
            return False
        turn.set_result(admitted)
        self._waiting -= 1
        self._reserved += admitted
        return True

    def _count(self) -> float:
        """Count the slots that were in use until now, which it returns."""
        now = asyncio.get_running_loop().time()
        if self._counted_until is not None:
            self._busy_seconds += len(self._running) * (now - self._counted_until)
        self._counted_until = now
        return now

    def _expect(self) -> None:
        if self._lockstep is not None:
            self._lockstep.expect(min(self._to_come, self.size))


class _Slot:
    """One agent's place among `slots`. No generator behind it: an agent may be as short as one small answer."""

    def __init__(self, slots: Slots, key: RolloutKey) -> None:
        self._slots = slots
        self._key = key

    async def __aenter__(self) -> None:
        await self._slots._take(self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots._release(self._key)
