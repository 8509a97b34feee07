"""All sessions of a gateway (S1): made once, found by id, ended by their agent or by time, deleted when asked to be.

A session that has ended takes no more calls, and what it recorded is left to the store.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator

from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.gateway.session import Session, SessionSettings, SessionState, digest_of
from loopwright.gateway.store import SessionStore
from loopwright.gateway.tries import Tries
from loopwright.render.recording.recorder import Recorder
from loopwright.serve.keys import new_key

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{8,64}")
RESERVED = frozenset({"sessions", "messages", "responses", "completions", "complete", "openapi", "embeddings"})
"""Names that paths begin with, or might one day."""
SWEEP_SECONDS = 5.0
REMEMBERED_SECONDS = 600.0
"""How long a session that has ended answers late calls with a 410, if nothing else keeps it."""


class Sessions:
    """Made by `restored`, or empty."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._sessions: dict[str, Session] = {}
        self._owners: dict[str, str] = {}

    @classmethod
    def restored(cls, store: SessionStore) -> Sessions:
        """What an earlier gateway has left: open sessions go on, as if their last call were now."""
        sessions = cls(store)
        for session in store.sessions():
            session.used = time.time()
            if session.state is SessionState.OPEN:
                for turn in store.turns(session.id):
                    session.recorder.add(turn)
                session.recorder.undelivered &= store.undelivered(session.id)
                session.calls = max((turn.draws for turn in session.recorder.turns), default=0)
                # A gateway of before has not kept how many it had asked for.
                session.calls = max(session.calls, len(session.recorder))
            sessions._keep(session)
        return sessions

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def counts(self) -> Counter[SessionState]:
        return Counter(session.state for session in self._sessions.values())

    def owner_of(self, key: str) -> str | None:
        """The id of the session that a key opens."""
        return self._owners.get(digest_of(key))

    def create(self, id: str | None, settings: SessionSettings) -> tuple[Session, str]:
        """A new session, and the key that only its agent gets to see."""
        id = _checked(id) if id is not None else secrets.token_urlsafe(12)
        if id in self._sessions:
            raise refused(
                Code.CONFLICT, f"there is a session {id} already", remedy="choose another id, or delete that one"
            )
        key, now = new_key(), time.time()
        session = Session(id, digest_of(key), settings, now, used=now)
        self._store.create(session)
        self._keep(session)
        return session, key

    def find(self, id: str) -> Session:
        """The session, in whatever state."""
        session = self._sessions.get(id)
        if session is None:
            raise refused(
                Code.UNKNOWN, f"there is no session {id:.64}", remedy="create it first with POST /sessions/{id}"
            )
        return session

    def find_open(self, id: str) -> Session:
        """The session, if it takes calls."""
        session = self.find(id)
        if session.state is not SessionState.OPEN or session.is_idle:
            raise over(session)
        return session

    def recorder_of(self, session: Session) -> Recorder:
        """What a session has recorded, also after its end."""
        if session.state is SessionState.OPEN or len(session.recorder):
            return session.recorder
        recorder = Recorder()
        for turn in self._store.turns(session.id):
            recorder.add(turn)
        return recorder

    def end(self, session: Session, state: SessionState = SessionState.COMPLETED) -> Recorder:
        """Take no more calls, and cancel those under way. Gives what was recorded, which is in the store alone then."""
        if session.state is not SessionState.OPEN:
            return self.recorder_of(session)
        session.state, session.used = state, time.time()
        for task in session.running:
            task.cancel()
        self._store.end(session.id, state)
        recorder, session.recorder, session.tries = session.recorder, Recorder(), Tries()
        return recorder

    def delete(self, session: Session) -> None:
        self.end(session)
        self._store.delete(session.id)
        self._sessions.pop(session.id, None)
        self._owners.pop(session.key_digest, None)

    async def sweep(self) -> None:
        """End the sessions of dead agents, for as long as nobody cancels this."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.end_idle()
            if self._store.forgets:
                self.forget()

    def forget(self) -> None:
        """Let go of sessions that ended a while ago: only a call that comes far too late would ask for them."""
        latest = time.time() - REMEMBERED_SECONDS
        over = [one for one in self._sessions.values() if one.state is not SessionState.OPEN and one.used < latest]
        for session in over:
            self.delete(session)

    def end_idle(self) -> None:
        idle = [one for one in self._sessions.values() if one.state is SessionState.OPEN and one.is_idle]
        for session in idle:
            self.end(session, SessionState.EXPIRED)

    def _keep(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._owners[session.key_digest] = session.id


def over(session: Session) -> Exception:
    """The refusal of a call that comes too late."""
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
