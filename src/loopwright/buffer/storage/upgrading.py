"""Databases of earlier versions.

Each version only adds columns, which are empty in older rows, and tables. When a run continues, its old database is
upgraded. When an old database is only read, views add what is missing.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

OLDEST, VERSION = 2, 4
"""The earliest version that can be read, and the present one."""


class Column(NamedTuple):
    """A column, and the first version that has it."""

    version: int
    table: str
    name: str
    type: str


ADDED = (
    Column(3, "groups", "archived", "INTEGER"),
    Column(4, "groups", "why", "TEXT"),
    *(
        Column(4, table, name, type)
        for table in ("rollouts", "eval_rollouts")
        for name, type in (("worker", "TEXT"), ("engines", "TEXT"), ("held_seconds", "REAL"), ("judged_at", "REAL"))
    ),
)


class Table(NamedTuple):
    """A table, and the first version that has it."""

    version: int
    name: str
    columns: str


TRAINED = Table(
    4,
    "trained",
    """
    task_set     TEXT    NOT NULL,
    draw         INTEGER NOT NULL,
    round        INTEGER NOT NULL,
    member       INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    advantage    REAL    NOT NULL,
    token_weight REAL    NOT NULL,  -- of each of its trained tokens in the loss
    loss_terms   REAL,              -- the sum of the absolute shares of the loss of its tokens, if these are known
    numbers      BLOB,              -- those of each trained token, until they are archived
    PRIMARY KEY (task_set, draw, round, member, attempt)
    """,
)
"""What a train step computed of a rollout. It is apart from the rollouts, because changing a row there would write its
tokens again."""
ADDED_TABLES = (TRAINED,)


def bring_up_to_date(db: sqlite3.Connection, found: int) -> None:
    """Add the columns that version `found` lacks, in one transaction."""
    if found == VERSION:
        return
    lacking = "".join(f"ALTER TABLE {one.table} ADD COLUMN {one.name} {one.type};" for one in _lacking(found))
    lacking += "".join(created(table) for table in ADDED_TABLES if table.version > found)
    db.executescript(f"BEGIN IMMEDIATE; {lacking} UPDATE schema SET version = {VERSION}; COMMIT;")


def read_as_present(db: sqlite3.Connection, found: int) -> None:
    """For this connection only, put a view in front of each table that lacks columns in version `found`."""
    tables: dict[str, list[str]] = {}
    for one in _lacking(found):
        tables.setdefault(one.table, []).append(f"NULL AS {one.name}")
    for table, columns in tables.items():
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {', '.join(columns)} FROM main.{table}")
    for missing in ADDED_TABLES:
        if missing.version > found:
            db.execute(f"CREATE TEMP TABLE {missing.name} ({missing.columns})")


def created(table: Table) -> str:
    """The SQL that makes it."""
    return f"CREATE TABLE {table.name} ({table.columns});"


def _lacking(found: int) -> list[Column]:
    return [one for one in ADDED if one.version > found]
