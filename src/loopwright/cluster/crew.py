"""Several actors that do the same work, kept running, and the choice of the one that does the next piece.

The invariants. A piece of work is given to one actor, once: whoever asked decides what happens if that actor is lost,
because nobody knows then whether the work was done. An actor that dies is started again within a budget (R4): after
several deaths in a row without an answer in between it is given up, and the others go on. When none is left, every
caller gets the reason. An actor that has no room, because its node is gone, waits for it, which costs no budget. It is
given up if it has waited for long and nobody else does its work.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, Self

from loopwright.core.together import together
from loopwright.core.wakeup import WakeUp
from loopwright.errors import BudgetError, ClusterRoomError, LoopwrightError, WorkerLostError

log = logging.getLogger("loopwright")

MAX_RESTARTS = 3
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
REMEMBERED = 10_000
"""How many sessions are remembered with their actor."""


class WorkingHost(Protocol):
    """An actor that works, as `RemoteHost` is."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of its part. Raises what that raises, and WorkerLostError if the actor is lost."""
        ...

    def silent_seconds(self) -> float:
        """For how many seconds nothing was heard of it."""
        ...

    async def died(self) -> str:
        """Wait until it is lost. Returns its last words."""
        ...


LaunchHost = Callable[[], AbstractAsyncContextManager[WorkingHost]]
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
        self.host: WorkingHost | None = None
        self.busy = 0
        self.deaths = 0
        self.starts = 0
        """How often an actor has begun to work here."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The last words of `host`, once a caller has learned that it is lost."""
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

    def launched(self) -> AbstractAsyncContextManager[WorkingHost]:
        return self._launch()

    def takes_work(self, host: WorkingHost) -> None:
        self.host = host
        self.starts += 1
        self.lost = asyncio.get_running_loop().create_future()

    def is_lost(self, host: WorkingHost, words: str) -> None:
        """Give it no more work: an actor that is lost refuses a call at once, and so would look idle."""
        if self.host is host:
            self.host = None
            self.lost.set_result(words)


class Crew:
    """The actors that `launches` start, by name. `open` makes it."""

    def __init__(
        self,
        role: str,
        launches: Sequence[Launching],
        max_restarts: int,
        on_death: OnDeath,
        max_silence: float | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._role = role
        self._members = [Member(name, launch) for name, launch in launches]
        self._max_restarts = max_restarts
        self._on_death = on_death
        self._max_silence = max_silence
        self._homes: OrderedDict[str, Member] = OrderedDict()
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = WakeUp()
        self._closing: asyncio.Future[None] = loop.create_future()
        self._now = loop.time

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        role: str,
        launches: Sequence[Launching],
        *,
        max_restarts: int = MAX_RESTARTS,
        on_death: OnDeath = lambda name, words: None,
        max_silence: float | None = None,
    ) -> AsyncIterator[Self]:
        """Start all actors, and wait until they work. Raises the first error of one that cannot start. An actor of
        which nothing is heard for `max_silence` seconds is lost."""
        crew = cls(role, launches, max_restarts, on_death, max_silence)
        try:
            crew._keepers = [asyncio.create_task(crew._keep(one), name=one.name) for one in crew._members]
            for keeper in crew._keepers:
                keeper.add_done_callback(lambda _: crew._changed.notify())
            await crew._changed.until(lambda: crew._first_error() is not None or len(crew.running) == len(launches))
            if (error := crew._first_error()) is not None:
                raise error
            yield crew
        finally:
            await crew._close()

    @property
    def running(self) -> list[Member]:
        """The members that can work now."""
        return [member for member in self._members if member.host is not None]

    def standing(self) -> dict[str, Any]:
        """How many of its actors work, their calls, and how often one was started again. Nobody is asked for it."""
        error = self._first_error()
        return {
            "role": self._role,
            "actors": len(self._members),
            "alive": len(self.running),
            "calls": sum(member.busy for member in self._members),
            "restarts": sum(max(0, member.starts - 1) for member in self._members),
            "given_up": None if error is None else str(error).splitlines()[0],
        }

    async def work(
        self, method: str, *args: Any, session: str = "", succeeded: Callable[[Any], bool] = lambda result: True
    ) -> Any:
        """Have one actor do this. Work of one `session` goes to the same actor as long as that lives.

        Raises what the method raises, and WorkerLostError if the actor is lost. What `succeeded` calls a failure counts
        against the actor.
        """
        member, host = await self._chosen(session)
        member.busy += 1
        try:
            result = await host.call(method, *args)
        except WorkerLostError as error:
            member.is_lost(host, error.message)
            member.failed(self._now())
            raise
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

    async def someone(self) -> WorkingHost:
        """An actor that works, as soon as there is one. Raises when none is left."""
        return (await self._chosen(""))[1]

    async def everyone(self, method: str, *args: Any) -> list[Any]:
        """Have all running actors do this. One that is lost meanwhile gives no answer: it is started again."""

        async def one(member: Member, host: WorkingHost) -> list[Any]:
            try:
                return [await host.call(method, *args)]
            except WorkerLostError as error:
                member.is_lost(host, error.message)
                return []

        answers = await together(one(member, member.host) for member in self.running if member.host is not None)
        return [answer for each in answers for answer in each]

    def home(self, session: str) -> str | None:
        """The name of the actor that works for this session."""
        home = self._homes.get(session)
        return None if home is None else home.name

    def silent_seconds(self, session: str) -> float:
        """For how many seconds nothing was heard of the actor that works for this session."""
        home = self._homes.get(session)
        return home.host.silent_seconds() if home is not None and home.host is not None else 0.0

    async def _chosen(self, session: str) -> tuple[Member, WorkingHost]:
        await self._changed.until(lambda: bool(self.running) or all(keeper.done() for keeper in self._keepers))
        if not (running := self.running):
            raise self._nobody_left()
        now = self._now()
        home = self._homes.get(session) if session else None
        if home is None or home.host is None or home.is_resting(now):
            home = min(running, key=lambda member: (member.is_resting(now), member.busy))
        if session:
            self._homes[session] = home
            self._homes.move_to_end(session)
            if len(self._homes) > REMEMBERED:
                self._homes.popitem(last=False)
        if home.host is None:
            raise RuntimeError(f"{home.name} was chosen, and does not run")
        return home, home.host

    async def _keep(self, member: Member) -> None:
        """Keep one actor running until the crew is closed. Raises when the budget is used up."""
        has_started = False
        while True:
            try:
                async with member.launched() as host:
                    has_started = True
                    member.takes_work(host)
                    self._changed.notify()
                    words = await self._until_lost(member, host)
            except WorkerLostError as error:
                words = error.message
            except ClusterRoomError as error:
                if not has_started or not self.running:
                    raise
                log.warning("%s. Others of %s go on, so it waits for longer.", error.message, self._role)
                continue
            except Exception as error:
                if not has_started:
                    raise
                # It could not be started again. What others have may have changed meanwhile, so this costs its budget.
                words = f"{type(error).__name__}: {error}"
            if words is None:
                return
            if self._closing.done():
                log.warning("%s did not close its part: %s", member.name, words)
                return
            log.warning("%s is lost: %s", member.name, words)
            self._on_death(member.name, words)
            member.deaths += 1
            if not has_started:
                raise BudgetError(f"{member.name} did not start: {words}", remedy="fix what its last words say")
            if member.deaths > self._max_restarts:
                raise BudgetError(
                    f"{member.name} was lost {member.deaths} times without doing its work in between: {words}",
                    remedy="fix what its last words say; its log is in the run folder",
                )
            await asyncio.sleep(_pause(member.deaths))

    async def _until_lost(self, member: Member, host: WorkingHost) -> str | None:
        """Wait until the actor is lost. Returns its last words, or None if the crew is closed."""
        died = asyncio.ensure_future(host.died())
        patience = None if self._max_silence is None else self._max_silence / 4
        try:
            while True:
                either = (died, member.lost, self._closing)
                await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if self._closing.done():
                    return None
                if died.done():
                    return died.result()
                if member.lost.done():
                    return member.lost.result()
                if self._max_silence is not None and (silent := host.silent_seconds()) > self._max_silence:
                    return f"nothing was heard of it for {silent:.0f} s"
        finally:
            died.cancel()
            member.host = None
            self._changed.notify()

    async def _close(self) -> None:
        self._closing.set_result(None)
        for member, keeper in zip(self._members, self._keepers, strict=False):
            # One that starts is not waited for. The others close their part first.
            if member.host is None:
                keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def _nobody_left(self) -> LoopwrightError:
        """Why nobody can work. It is another object for every caller: each adds a traceback of its own."""
        reason = self._first_error()
        if isinstance(reason, LoopwrightError):
            return BudgetError(f"no actor of {self._role} is left: {reason.message}", remedy=reason.remedy)
        return WorkerLostError(f"the actors of {self._role} were ended", remedy="nothing to do: the run ends")

    def _first_error(self) -> BaseException | None:
        """Why a member was given up, if one was."""
        ended = (keeper for keeper in self._keepers if keeper.done() and not keeper.cancelled())
        return next((error for keeper in ended if (error := keeper.exception()) is not None), None)


def _pause(times: int) -> float:
    # Without a limit the power would overflow: a judger may fail thousands of times in a row.
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(times - 1, 10), LONGEST_PAUSE_SECONDS)
