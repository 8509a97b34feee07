"""The gateway inside a run lives for days: what has ended does not stay (S1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.errors import RefusedError
from loopwright.gateway import sessions as room
from loopwright.gateway.session import SessionSettings
from loopwright.gateway.sessions import Sessions
from loopwright.gateway.store import MemoryStore, SqliteStore


async def test_a_store_that_keeps_nothing_lets_go_of_what_ended_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(MemoryStore())
    ended, key = sessions.create(None, SessionSettings())
    live, _ = sessions.create(None, SessionSettings())
    ended.used -= 2 * room.REMEMBERED_SECONDS  # its last call was long ago, its end is now
    sessions.end(ended)
    sessions.forget()
    assert sessions.find(ended.id) is ended, "late calls are told that it is over"
    monkeypatch.setattr(room, "REMEMBERED_SECONDS", -1.0)
    sessions.forget()
    with pytest.raises(RefusedError, match="there is no session"):
        sessions.find(ended.id)
    assert sessions.owner_of(key) is None
    assert sessions.find_open(live.id) is live


async def test_a_store_that_outlives_the_process_keeps_them_until_they_are_deleted(tmp_path: Path) -> None:
    assert MemoryStore.forgets
    assert not SqliteStore(tmp_path / "sessions.sqlite").forgets
