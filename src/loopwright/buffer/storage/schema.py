"""The tables of a run's database, and the two ways to open it: for writing and for reading.

A database of an earlier version is read as if it had the columns that it lacks. A database that cannot be read in this
way is refused.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from loopwright.buffer.rows import RolloutRow
from loopwright.buffer.storage.upgrading import OLDEST, TRAINED, VERSION, bring_up_to_date, created, read_as_present
from loopwright.errors import RunError

CHECKPOINT_PAGES = 4000
"""SQLite moves its log into the database when the log has this many pages (16 MB). With SQLite's default of 1,000, a
run with large rollouts waits for the disk ten times a second."""

ROLLOUT_COLUMNS = ", ".join(RolloutRow._fields)

_ROLLOUT_COLUMNS_TYPED = """
    member        INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    stop          TEXT,
    messages      TEXT,
    chains        BLOB,
    reward        TEXT    NOT NULL,
    started       REAL    NOT NULL,
    agent_seconds REAL    NOT NULL,
    judge_seconds REAL    NOT NULL,
    oldest        INTEGER,
    worker        TEXT,
    engines       TEXT,
    held_seconds  REAL,
    judged_at     REAL,
"""

_TABLES = f"""
CREATE TABLE groups (
    task_set TEXT    NOT NULL,
    draw     INTEGER NOT NULL,
    round    INTEGER NOT NULL,
    task     TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    newest   INTEGER NOT NULL,  -- the newest weights behind it: `version`, or a later one that sampled a token
    status   TEXT    NOT NULL,
    step     INTEGER,           -- the train step that consumed it
    expiries INTEGER NOT NULL,  -- how often its members became too old and were made anew
    archived INTEGER,           -- the checkpoint after which its payloads were moved, if it was not trained
    why      TEXT,              -- why it was filtered or failed
    PRIMARY KEY (task_set, draw, round)
);

CREATE TABLE rollouts (
    task_set TEXT    NOT NULL,
    draw     INTEGER NOT NULL,
    round    INTEGER NOT NULL,
    expiries INTEGER NOT NULL,  -- those of its group when it was made
    {_ROLLOUT_COLUMNS_TYPED}
    PRIMARY KEY (task_set, draw, round, member, attempt),
    FOREIGN KEY (task_set, draw, round) REFERENCES groups
);

CREATE TABLE eval_rollouts (
    step     INTEGER NOT NULL,
    task_set TEXT    NOT NULL,
    mode     TEXT    NOT NULL,
    draw     INTEGER NOT NULL,
    task     TEXT    NOT NULL,
    {_ROLLOUT_COLUMNS_TYPED}
    PRIMARY KEY (step, task_set, mode, draw, member, attempt)
);

{created(TRAINED)}

CREATE TABLE trail (
    place    INTEGER PRIMARY KEY,
    task_set TEXT    NOT NULL,
    draw     INTEGER NOT NULL,
    round    INTEGER NOT NULL,
    member   INTEGER,           -- none for an event of the whole group
    attempt  INTEGER,
    event    TEXT    NOT NULL,
    version  INTEGER,
    step     INTEGER,
    lineage  INTEGER NOT NULL,
    at       REAL    NOT NULL
);

CREATE TABLE lineages (
    lineage      INTEGER PRIMARY KEY,
    step         INTEGER NOT NULL,  -- the checkpoint that it began from
    stale        TEXT    NOT NULL,
    horizon      INTEGER,
    max_expiries INTEGER NOT NULL,
    at           REAL    NOT NULL
);

CREATE TABLE schema (version INTEGER NOT NULL);
INSERT INTO schema VALUES ({VERSION});
"""

_INDEXES = """
CREATE INDEX IF NOT EXISTS groups_by_step ON groups (step);
CREATE INDEX IF NOT EXISTS groups_by_archive ON groups (archived) WHERE archived IS NOT NULL;
CREATE INDEX IF NOT EXISTS trail_of_steps ON trail (step) WHERE event = 'consumed';
"""


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """The connection that may write. It uses the write-ahead log, so readers never wait and a kill loses no commit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise RunError(
                f"{path} cannot use SQLite's write-ahead log (journal mode {mode})",
                remedy="put trainer.run_dir on a local disk",
            )
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA foreign_keys = ON")
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        bring_up_to_date(connection, _known_version(connection, path))
        connection.executescript(_INDEXES)
        yield connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can only read. It works while another process writes."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        read_as_present(connection, _known_version(connection, path))
        yield connection


@contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """A consistent view of a run at this moment. Commits that happen later do not change it."""
    if not path.is_file():
        raise RunError(f"there are no rollouts at {path}", remedy="name the folder of a run that has started")
    try:
        with reading(path) as connection:
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def force_to_disk(path: Path) -> None:
    """Make all commits survive a power cut. SQLite itself waits for the disk only when it moves its log into the
    database."""
    # Closing a file releases all locks of this process on it. That is safe here: SQLite holds no locks on its log.
    try:
        descriptor = os.open(f"{path}-wal", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unusable(path, error, full=error.errno == errno.ENOSPC) from error


def _known_version(connection: sqlite3.Connection, path: Path) -> int:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema'").fetchone()
    found = connection.execute("SELECT max(version) FROM schema").fetchone()[0] if known else None
    if found is None:
        # Nobody may lose a run because its file was damaged, so this does not advise to start over.
        raise RunError(
            f"{path} has no schema version: it is empty, damaged, or not the database of a run",
            remedy="wait for the first rollout if the run has just started; else restore the file from a copy",
        )
    if not OLDEST <= found <= VERSION:
        raise RunError(
            f"{path} has schema version {found}, this Loopwright reads versions {OLDEST} to {VERSION}",
            remedy="use the Loopwright version that wrote it, or start over with --fresh",
        )
    return int(found)


def storage_error(error: sqlite3.Error, path: Path) -> RunError:
    """SQLite's message with a remedy."""
    return _unusable(path, error, full=getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL)


def _unusable(path: Path, error: Exception, *, full: bool) -> RunError:
    remedy = "free some disk space" if full else "check that the file is readable, writable and on a sound local disk"
    return RunError(f"{path}: {error}", remedy=f"{remedy}; then the same command goes on from what was stored")
