"""The run that a gateway works for: it holds the gateway by a lease, and brings the model.

A registration is only in memory: a gateway that was started again has its sessions, and waits for the run to register
again. The invariant: no session goes on with the model of another process than the one that opened it. When another
run registers, or the same one after a restart, all sessions of the earlier one have ended before the new model is
offered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from loopwright.errors import LoopwrightError, RefusedError
from loopwright.gateway.offer import Offer, Served
from loopwright.gateway.refusals import Code, refused
from loopwright.gateway.registration import RUN_SESSION, Registration, RunModel
from loopwright.gateway.session import Session, SessionState
from loopwright.gateway.sessions import Sessions
from loopwright.serve.lease import Lease, LeaseHolder

log = logging.getLogger("loopwright")

ConnectRun = Callable[[RunModel], AbstractAsyncContextManager[tuple[Served, Callable[[], float]]]]
"""Connects to the model of a run. Gives it with the clock of held seconds of its engines."""


class Runs:
    """Registers one run at a time. Close it with `aclose`."""

    def __init__(self, connect: ConnectRun, sessions: Sessions, offer: Offer) -> None:
        self._connect = connect
        self._sessions = sessions
        self._offer = offer
        self._lease = Lease()
        self._present: Registration | None = None
        self._connection = AsyncExitStack()
        self._changing = asyncio.Lock()

    @property
    def holder(self) -> LeaseHolder | None:
        """The run that holds the gateway now."""
        return self._lease.holder

    def check(self, asking: LeaseHolder | None) -> None:
        """Refuse whoever does not hold the gateway, while a run does."""
        self._lease.check(asking)

    async def register(self, registration: Registration, seconds: float) -> None:
        """Take or renew the lease. A run that is not registered yet brings its model with it."""
        self._check_no_workers()
        self._lease.take(registration.holder, seconds)
        async with self._changing:
            if registration == self._present:
                return
            self._lease.check(registration.holder)
            await self._change(registration)

    async def leave(self, asking: LeaseHolder | None) -> None:
        """The run has ended: it needs neither the gateway nor its sessions any more."""
        self._lease.release(asking)
        async with self._changing:
            # The lease of another process may have lapsed: it will renew the lease, and keeps its sessions.
            other = self._present if self._present is not None and self._present.holder != asking else None
            if asking is not None and (other is None or other.holder.run != asking.run):
                for session in self._opened_by(asking):
                    self._sessions.delete(session)
            if other is not None or self._present is None:
                return
            self._present = None
            self._offer.change(None)
            await self._connection.aclose()

    def open_sessions(self) -> list[Session]:
        """The open sessions of the run that is registered."""
        prefix = self._present.prefix if self._present is not None else None
        return [
            one
            for one in self._sessions
            if prefix is not None and one.state is SessionState.OPEN and one.id.startswith(prefix)
        ]

    async def aclose(self) -> None:
        self._offer.change(None)
        await self._connection.aclose()

    async def _change(self, registration: Registration) -> None:
        async with AsyncExitStack() as connecting:
            try:
                served, held = await connecting.enter_async_context(self._connect(registration.model))
                self._check_no_workers()
            except RefusedError:
                self._release_if_new(registration)
                raise
            except LoopwrightError as error:
                self._release_if_new(registration)
                raise refused(
                    Code.INVALID,
                    f"the gateway cannot use the run's model: {error.message}",
                    remedy=error.remedy,
                    param="model",
                ) from error
            except BaseException:
                self._release_if_new(registration)
                raise
            # Nothing is awaited from here on: a call of an earlier session must not meet the new model.
            self._end_others(registration)
            self._end_strangers()
            self._offer.change(served, held)
            self._present = registration
            earlier, self._connection = self._connection, connecting.pop_all()
        log.info("%s is registered, with %s", registration.holder, served.name)
        await earlier.aclose()

    def _check_no_workers(self) -> None:
        """Workers of a relay may have brought a model before any run did."""
        if self._present is None and self._offer.now is not None:
            raise refused(
                Code.CONFLICT,
                f"workers serve {self._offer.now.name} at this gateway",
                remedy="use another gateway, or start this one again without them",
            )

    def _release_if_new(self, registration: Registration) -> None:
        """The run could not register. It does not keep others away, unless it was registered before."""
        is_new = self._present is None or self._present.holder != registration.holder
        if is_new and self._lease.holder == registration.holder:
            self._lease.release(registration.holder)

    def _end_others(self, registration: Registration) -> None:
        """End the sessions of every other process. One that was open is kept until the next time, so that late calls
        get a 410. One of the same run that has an outcome is kept for the run, which decides what becomes of it. The
        rest is of no use."""
        for session in self._of_runs():
            if session.id.startswith(registration.prefix):
                continue
            if session.state is SessionState.OPEN:
                self._sessions.end(session)
            elif session.outcome is None or not session.id.startswith(f"{registration.holder.run}-"):
                self._sessions.delete(session)

    def _end_strangers(self) -> None:
        """End the sessions that somebody has opened while no run held the gateway, and that an earlier model has
        answered: their tokens mean something else to the new model (T1)."""
        for session in [one for one in self._sessions if not RUN_SESSION.fullmatch(one.id)]:
            was_answered = len(session.recorder) or (session.running and self._offer.now is not None)
            if session.state is SessionState.OPEN and was_answered:
                self._sessions.end(session)

    def _opened_by(self, holder: LeaseHolder) -> list[Session]:
        """The sessions of the run, without those of later processes."""
        named = ((session, RUN_SESSION.fullmatch(session.id)) for session in self._sessions)
        return [
            session
            for session, name in named
            if name is not None and name["run"] == holder.run and int(name["lineage"]) <= holder.lineage
        ]

    def _of_runs(self) -> list[Session]:
        return [session for session in self._sessions if RUN_SESSION.fullmatch(session.id)]
