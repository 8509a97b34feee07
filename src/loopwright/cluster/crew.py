"""Several actors that do the same work, kept running, and the choice of the one that does the next piece.

The invariants. A piece of work is given to one actor, once: whoever asked decides what happens if that actor is lost,
because nobody knows then whether the work was done. An actor that dies is started again within a budget (R4): after
several deaths in a row without an answer in between it is given up, and the others go on. When none is left, every
caller gets the reason. An actor that has no room, because its node is gone, waits for room; that costs no budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

from loopwright.cluster.remote_host import RemoteHost
from loopwright.core.together import together
from loopwright.core.wakeup import WakeUp
from loopwright.errors import BudgetError, WorkerLostError

log = logging.getLogger("loopwright")

MAX_RESTARTS = 3
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
REMEMBERED = 10_000
"""How many sessions are remembered with their actor."""

LaunchHost = Callable[[], AbstractAsyncContextManager[RemoteHost]]
"""A context that starts an actor when it is entered, and ends it when it is left."""
Launching = tuple[str, LaunchHost]
"""The name of an actor, and how it is started."""
OnDeath = Callable[[str, str], object]
"""Gets the name and the last words of an actor that was lost."""


class Member:
    """One place of a crew. `host` is the actor that works there now, if one does; `busy` counts its calls. After a
    failure it rests: others are preferred for a while, because a worker that fails fast always looks idle."""

    def __init__(self, name: str, launch: LaunchHost) -> None:
        self.name = name
        self.host: RemoteHost | None = None
        self.busy = 0
        self.deaths = 0
        self._launch = launch
        self._failures = 0
        self._rests_until = 0.0

    def is_resting(self, now: float) -> bool:
        return now < self._rests_until

    def failed(self, now: float) -> None:
        self._failures += 1
        self._rests_until = now + _pause(self._failures)

    def succeeded(self) -> None:
        self.deaths = self._failures = 0
        self._rests_until = 0.0

    def started(self) -> AbstractAsyncContextManager[RemoteHost]:
        return self._launch()


class Crew:
    """The actors that `launches` start, by name. `open` makes it."""

    def __init__(self, role: str, launches: Sequence[Launching], max_restarts: int, on_death: OnDeath) -> None:
        self._role = role
        self._members = [Member(name, launch) for name, launch in launches]
        self._max_restarts = max_restarts
        self._on_death = on_death
        self._homes: OrderedDict[str, Member] = OrderedDict()
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = WakeUp()
        self._now = asyncio.get_running_loop().time

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        role: str,
        launches: Sequence[Launching],
        *,
        max_restarts: int = MAX_RESTARTS,
        on_death: OnDeath = lambda name, words: None,
    ) -> AsyncIterator[Self]:
        """Start all actors, and wait until they work. Raises the first error of one that cannot start."""
        crew = cls(role, launches, max_restarts, on_death)
        try:
            crew._keepers = [asyncio.create_task(crew._keep(one), name=one.name) for one in crew._members]
            for keeper in crew._keepers:
                keeper.add_done_callback(lambda _: crew._changed.notify())
            await crew._changed.until(lambda: crew._first_error() is not None or len(crew.running) == len(launches))
            if (error := crew._first_error()) is not None:
                raise error
            yield crew
        finally:
            for keeper in crew._keepers:
                keeper.cancel()
            await asyncio.gather(*crew._keepers, return_exceptions=True)

    @property
    def running(self) -> list[Member]:
        """The members that can work now."""
        return [member for member in self._members if member.host is not None and member.host.is_alive]

    async def work(
        self, method: str, *args: Any, session: str = "", succeeded: Callable[[Any], bool] = lambda result: True
    ) -> Any:
        """Have one actor do this. Work of one `session` goes to the same actor as long as that lives.

        Raises what the method raises, and WorkerLostError if the actor is lost. What `succeeded` calls a failure counts
        against the actor.
        """
        member = await self._chosen(session)
        host = member.host
        if host is None:
            raise RuntimeError(f"{member.name} was chosen, and does not run")
        member.busy += 1
        try:
            result = await host.call(method, *args)
        except Exception:
            member.failed(self._now())
            raise
        finally:
            member.busy -= 1
        if succeeded(result):
            member.succeeded()
        else:
            member.failed(self._now())
        return result

    async def everyone(self, method: str, *args: Any) -> list[Any]:
        """Have all running actors do this."""
        return await together(member.host.call(method, *args) for member in self.running if member.host is not None)

    def silent_seconds(self, session: str) -> float:
        """For how many seconds nothing was heard of the actor that works for this session."""
        home = self._homes.get(session)
        return home.host.silent_seconds() if home is not None and home.host is not None else 0.0

    async def _chosen(self, session: str) -> Member:
        await self._changed.until(lambda: bool(self.running) or all(keeper.done() for keeper in self._keepers))
        if not (running := self.running):
            raise self._first_error() or WorkerLostError(f"no actor of {self._role} is left", remedy="see the logs")
        now = self._now()
        home = self._homes.get(session) if session else None
        if home is None or home.host is None or home.is_resting(now):
            home = min(running, key=lambda member: (member.is_resting(now), member.busy))
        if session:
            self._homes[session] = home
            self._homes.move_to_end(session)
            if len(self._homes) > REMEMBERED:
                self._homes.popitem(last=False)
        return home

    async def _keep(self, member: Member) -> None:
        """Keep one actor running until this is cancelled. Raises when the budget is used up."""
        served = False
        while True:
            try:
                async with member.started() as host:
                    member.host, served = host, True
                    self._changed.notify()
                    words = await host.died()
            except WorkerLostError as error:
                words = error.message
            finally:
                member.host = None
                self._changed.notify()
            log.warning("%s is lost: %s", member.name, words)
            self._on_death(member.name, words)
            member.deaths += 1
            if not served:
                raise BudgetError(f"{member.name} did not start: {words}", remedy="fix what its last words say")
            if member.deaths > self._max_restarts:
                raise BudgetError(
                    f"{member.name} was lost {member.deaths} times without doing its work in between: {words}",
                    remedy="fix what its last words say; its log is in the run folder",
                )
            await asyncio.sleep(_pause(member.deaths))

    def _first_error(self) -> BaseException | None:
        """Why a member was given up, if one was."""
        ended = (keeper for keeper in self._keepers if keeper.done() and not keeper.cancelled())
        return next((error for keeper in ended if (error := keeper.exception()) is not None), None)


def _pause(times: int) -> float:
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (times - 1), LONGEST_PAUSE_SECONDS)
