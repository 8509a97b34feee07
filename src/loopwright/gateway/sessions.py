"""All sessions of a gateway (S1): they are created once, found by id, ended by a request or by time, and deleted on
request.

A session that has ended accepts no more calls, and its record is only in the store.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from loopwright.errors import EngineLostError, LoopwrightError, RunError
from loopwright.gateway.call_log import LoggedCall
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.gateway.session import Session, SessionSettings, SessionState, digest_of, never_held
from loopwright.gateway.store import SessionStore
from loopwright.gateway.tries import Tries
from loopwright.gateway.wire import version_of
from loopwright.render.recording.recorder import Recorder
from loopwright.serve.keys import new_key

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{8,64}")
RESERVED = frozenset({"sessions", "messages", "responses", "completions", "complete", "openapi", "embeddings"})
"""Names with which paths begin, or may begin in the future."""
SWEEP_SECONDS = 5.0
REMEMBERED_SECONDS = 600.0
"""How long an ended session answers late calls with a 410, if the store does not keep it."""


class Sessions:
    """The sessions. It starts empty, or with those of a store (`restored`)."""

    def __init__(self, store: SessionStore, held: Callable[[], float] = never_held) -> None:
        self._store = store
        self.held = held
        """Reads the clock of held seconds: for how many seconds in total the engines have answered nobody."""
        self._sessions: dict[str, Session] = {}
        self._owners: dict[str, str] = {}
        self._completed = 0

    @classmethod
    def restored(cls, store: SessionStore, held: Callable[[], float] = never_held) -> Sessions:
        """The sessions of an earlier gateway. Open sessions continue, as if their last call were now."""
        sessions = cls(store, held)
        for session in store.sessions():
            session.used = time.time()
            lost = store.cut_off(session.id)
            session.cut_off = len(lost)
            if session.state is SessionState.OPEN:
                for turn in store.turns(session.id):
                    session.recorder.add(turn)
                session.recorder.undelivered &= store.undelivered(session.id)
                session.held_clock, session.held_from = held, held() - session.held_seconds
                _restore_last_call(session, lost)
                session.quiet_since_restart = True
            sessions._keep(session)
        return sessions

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def counts(self) -> Counter[SessionState]:
        return Counter(session.state for session in self._sessions.values())

    def standing(self) -> dict[str, Any]:
        """How many sessions are open, how many of these wait for the model, and how many were completed so far."""
        own = [one for one in self._sessions.values() if one.state is SessionState.OPEN]
        return {"open": len(own), "waiting": sum(bool(one.running) for one in own), "completed": self._completed}

    def owner_of(self, key: str) -> str | None:
        """The id of the session that a key opens."""
        return self._owners.get(digest_of(key))

    def create(self, id: str | None, settings: SessionSettings) -> tuple[Session, str]:
        """A new session, and its key, which only the caller gets."""
        id = _checked(id) if id is not None else secrets.token_urlsafe(12)
        if id in self._sessions:
            raise refused(
                Code.CONFLICT, f"there is a session {id} already", remedy="choose another id, or delete that one"
            )
        key, now = new_key(), time.time()
        session = Session(id, digest_of(key), settings, now, used=now, held_clock=self.held, held_from=self.held())
        self._store.create(session)
        self._keep(session)
        return session, key

    def find(self, id: str) -> Session:
        """The session, in any state."""
        session = self._sessions.get(id)
        if session is None:
            raise refused(
                Code.UNKNOWN, f"there is no session {id:.64}", remedy="create it first with POST /sessions/{id}"
            )
        return session

    def find_open(self, id: str) -> Session:
        """The session, if it accepts calls."""
        session = self.find(id)
        if session.state is not SessionState.OPEN or session.is_idle:
            raise over(session)
        return session

    def recorder_of(self, session: Session) -> Recorder:
        """The record of a session, also after its end."""
        if session.state is SessionState.OPEN or len(session.recorder):
            return session.recorder
        recorder = Recorder()
        for turn in self._store.turns(session.id):
            recorder.add(turn)
        return recorder

    def version(self, session: Session) -> str | None:
        """The version of an ended session's record, which does not change any more. None while the session is open."""
        if session.version is None and session.state is not SessionState.OPEN:
            # An older gateway ended it.
            session.version = version_of(session, self.recorder_of(session).turns)
        return session.version

    def has_record(self, session: Session) -> bool:
        """Whether the record can still be read here. A store that forgets keeps no record of an ended session."""
        return session.state is SessionState.OPEN or not self._store.forgets

    def end(self, session: Session, state: SessionState = SessionState.COMPLETED) -> Recorder:
        """Accept no more calls, and cancel the running ones. Returns the record, which is only in the store after
        that."""
        if session.state is not SessionState.OPEN:
            return self.recorder_of(session)
        session.state, session.version = state, version_of(session, session.recorder.turns)
        try:
            self._store.end(session)
        except LoopwrightError:
            # A restarted gateway would find it open, so it must not be shown as ended.
            session.state, session.version = SessionState.OPEN, None
            raise
        self._completed += state is SessionState.COMPLETED
        session.used = time.time()
        session.stop_held_clock()
        for task in session.running:
            task.cancel()
        recorder, session.recorder, session.tries = session.recorder, Recorder(), Tries()
        return recorder

    def note_outcome(self, session: Session, outcome: Mapping[str, Any]) -> None:
        """Keep the outcome of an ended session with it."""
        session.outcome = outcome
        self._store.note_outcome(session)

    def delete(self, session: Session) -> None:
        self.end(session)
        self._store.delete(session.id)
        self._sessions.pop(session.id, None)
        self._owners.pop(session.key_digest, None)

    async def sweep(self) -> None:
        """End the sessions of dead agents, until this is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.end_idle()
            if self._store.forgets:
                self.forget()

    def forget(self) -> None:
        """Remove sessions that ended a while ago. Only very late calls would still ask for them."""
        latest = time.time() - REMEMBERED_SECONDS
        over = [one for one in self._sessions.values() if one.state is not SessionState.OPEN and one.used < latest]
        for session in over:
            self.delete(session)

    def end_idle(self) -> None:
        idle = [one for one in self._sessions.values() if one.state is SessionState.OPEN and one.is_idle]
        for session in idle:
            # If its end cannot be stored, the next sweep tries again.
            with suppress(RunError):
                self.end(session, SessionState.EXPIRED)

    def _keep(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._owners[session.key_digest] = session.id


def _restore_last_call(session: Session, lost: Sequence[LoggedCall]) -> None:
    """How the last call ended, and how many samples were requested: no seed is used twice. The latest of these tells:
    the stored facts, the turns after them, and the calls that were cut off."""
    turns = session.recorder.turns
    answered = max((turn.draws for turn in turns), default=0)
    if len(turns) > session.noted_turns:
        session.fault, session.last_finish = None, turns[-1].finish
    # An older gateway did not store how many samples were requested.
    session.calls = max(session.calls, answered, len(turns))
    asked = max((call.draws for call in lost), default=0)
    if asked > session.calls:
        session.calls = asked
        session.fault = EngineLostError("the gateway ended before the model had answered", remedy="ask again")


def over(session: Session) -> Exception:
    """The refusal of a call after the end of the session."""
    state = SessionState.EXPIRED if session.state is SessionState.OPEN else session.state
    return refused(
        Code.GONE, f"session {session.id} is {state.value}, and takes no calls", remedy="create another session"
    )


def _checked(id: str) -> str:
    if not ID_PATTERN.fullmatch(id) or id.lower() in RESERVED:
        raise invalid(
            "id", f"{id!r:.80} cannot name a session", remedy="use 8 to 64 letters, digits, - or _, and no path's name"
        )
    return id
