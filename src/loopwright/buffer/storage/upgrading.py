"""Databases of earlier versions.

Each version only adds columns, which are empty in older rows. When a run continues, its old database is upgraded. When
an old database is only read, views add the missing columns.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

OLDEST, VERSION = 2, 3
"""The earliest version that can be read, and the present one."""


class Column(NamedTuple):
    """A column, and the first version that has it."""

    version: int
    table: str
    name: str
    type: str


ADDED = (Column(3, "groups", "archived", "INTEGER"),)


def bring_up_to_date(db: sqlite3.Connection, found: int) -> None:
    """Add the columns that version `found` lacks, in one transaction."""
    if found == VERSION:
        return
    lacking = "".join(f"ALTER TABLE {one.table} ADD COLUMN {one.name} {one.type};" for one in _lacking(found))
    db.executescript(f"BEGIN IMMEDIATE; {lacking} UPDATE schema SET version = {VERSION}; COMMIT;")


def read_as_present(db: sqlite3.Connection, found: int) -> None:
    """For this connection only, put a view in front of each table that lacks columns in version `found`."""
    tables: dict[str, list[str]] = {}
    for one in _lacking(found):
        tables.setdefault(one.table, []).append(f"NULL AS {one.name}")
    for table, columns in tables.items():
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {', '.join(columns)} FROM main.{table}")


def _lacking(found: int) -> list[Column]:
    return [one for one in ADDED if one.version > found]
