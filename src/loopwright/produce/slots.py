"""Slots for agents: at most `size` agents of all task sets run at a time, first come, first served.

The slots tell a lockstep engine how many agents are about to call it. So the engine's batches, and with them the last
bits of every logprob, are the same in every run (D3).
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
    """An agent was turned away because production is being interrupted. It was not started, so nothing is lost."""


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
        """Slots of agents that were woken and have not run yet."""
        self._queue: deque[asyncio.Future[bool]] = deque()
        self._waiting = 0
        self._announced = 0
        self._is_open = True
        self._to_come = 0
        self._busy_seconds = 0.0
        self._counted_until: float | None = None

    @property
    def free(self) -> int:
        """How many slots are left beside the agents that run, wait or are announced. If negative, so many have to
        wait."""
        return self.size - self._taken - self._waiting - self._announced

    @property
    def _taken(self) -> int:
        return len(self._running) + self._reserved

    def announce(self, agents: int) -> None:
        """Announce agents that will ask for a slot as soon as their tasks run."""
        self._announced += agents

    def slot(self, key: RolloutKey) -> AbstractAsyncContextManager[None]:
        """Wait for a slot and keep it. Raises NotStartedError if production is interrupted before."""
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
        """Tell a lockstep engine how many `agents` start together.

        If an agent ends while others wait for its slot, the engine still waits for as many: the next in line takes the
        slot before the engine may step again. At the end the engine waits for nobody, whatever happened.
        """
        self._to_come = agents
        self._expect()
        try:
            yield
        finally:
            self._to_come = 0
            self._expect()

    def interrupt(self) -> None:
        """Turn away agents that wait for a slot, and new ones, until `open`. Agents that have a slot keep it."""
        self._is_open = False
        while self._queue:
            self._call(self._queue.popleft(), admitted=False)

    def open(self) -> None:
        """Let agents in again. No agents are announced."""
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
        """For how many seconds slots were in use, summed over all slots, since the first agent started."""
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
        """Wake a waiting agent. False if it was cancelled."""
        if turn.cancelled():
            return False
        turn.set_result(admitted)
        self._waiting -= 1
        self._reserved += admitted
        return True

    def _count(self) -> float:
        """Add the time of the slots that were in use until now. Returns the present time."""
        now = asyncio.get_running_loop().time()
        if self._counted_until is not None:
            self._busy_seconds += len(self._running) * (now - self._counted_until)
        self._counted_until = now
        return now

    def _expect(self) -> None:
        if self._lockstep is not None:
            self._lockstep.expect(min(self._to_come, self.size))


class _Slot:
    """One agent's slot, as a context manager. It is a class because a generator would cost more, and some agents are
    very short."""

    def __init__(self, slots: Slots, key: RolloutKey) -> None:
        self._slots = slots
        self._key = key

    async def __aenter__(self) -> None:
        await self._slots._take(self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots._release(self._key)
