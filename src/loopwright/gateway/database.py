"""The files of a store of sessions: its database, in the formats that can be continued, its lock and its log of calls.

Opening them also finds out which calls were cut off when the gateway before died.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import orjson

from loopwright.errors import RunError
from loopwright.gateway.call import whole_answer
from loopwright.gateway.call_log import CallLog, LoggedCall, calls_without_end
from loopwright.gateway.session import SessionState

FORMAT = 2
READABLE = (0, 1, FORMAT)
"""The formats that can be continued. 0 is a new file; 1 had no facts of a session, and no log of calls."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, key_digest TEXT NOT NULL, settings TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
    facts TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
    session TEXT NOT NULL, number INTEGER NOT NULL, facts BLOB NOT NULL, tokens BLOB NOT NULL,
    PRIMARY KEY (session, number)
);
CREATE TABLE IF NOT EXISTS delivered (session TEXT, number INTEGER, PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cut_off (
    session TEXT, id TEXT, asked REAL, prompt_tokens INTEGER, samples INTEGER, draws INTEGER, PRIMARY KEY (session, id)
) WITHOUT ROWID;
"""
"""Turns have row numbers, so that a new turn is written after all others; ordered by session, it would move them. Turns
of an older gateway without the table `delivered` count as delivered."""


def open_database(path: Path) -> tuple[sqlite3.Connection, CallLog]:
    """The database, with the calls that were cut off, and a new log of calls."""
    connection, log_path = _open_file(path), path.with_name(f"{path.name}.calls")
    try:
        with connection:
            connection.executemany(
                "INSERT OR IGNORE INTO cut_off VALUES (?, ?, ?, ?, ?, ?)", _cut_off(connection, log_path)
            )
        return connection, CallLog(log_path)
    except BaseException:
        connection.close()
        raise


def _cut_off(db: sqlite3.Connection, log_path: Path) -> Iterator[tuple[Any, ...]]:
    """The calls in the log that have neither a turn nor an end. A session that was over had lost nothing."""
    by_session: dict[str, list[LoggedCall]] = {}
    for call in calls_without_end(log_path):
        by_session.setdefault(call.session, []).append(call)
    for session_id, calls in by_session.items():
        of = "SELECT facts FROM turns WHERE session = ?"
        answered = {whole_answer(orjson.loads(facts)["answer"]) for (facts,) in db.execute(of, (session_id,))}
        state = db.execute("SELECT state FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if state == (SessionState.OPEN.value,):
            yield from (astuple(call) for call in calls if call.id not in answered)


def _open_file(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # Deleted or redacted data must not stay in unused pages.
    connection.execute("PRAGMA secure_delete = ON")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in READABLE:
        with closing(connection):
            raise RunError(
                f"{path} was written by another version (format {version}, this one writes {FORMAT})",
                remedy="finish its sessions with that version, or name another file",
            )
    kept_deliveries = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'delivered'").fetchone()
    connection.executescript(SCHEMA)
    if kept_deliveries is None:
        with connection:
            connection.execute("INSERT INTO delivered SELECT session, number FROM turns")
    if not any(name == "facts" for _, name, *_ in connection.execute("PRAGMA table_info(sessions)")):
        connection.execute("ALTER TABLE sessions ADD COLUMN facts TEXT NOT NULL DEFAULT '{}'")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    return connection


def move_log(path: Path, *, empty: bool) -> bool:
    """Move the log into the file without waiting: pages that are in use stay in the log until the next time. With
    `empty`, deleted or redacted data is also removed from the log. False if the log was in use."""
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        # Only what was written since then is left to be moved, so this does not block writers for long.
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() if empty else (0,)
    return not busy
