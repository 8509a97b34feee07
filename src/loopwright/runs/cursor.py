"""A place in the trained steps of a run, from which a reader goes on.

It names the database and the lineage that it belongs to. Another lineage may have undone steps, and another file is
another run: then a reader has to start again.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TEXT = re.compile(r"([0-9a-f]{1,16}-[0-9a-f]{1,16}-[0-9]{1,9})\.([0-9]{1,16})\.([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """What follows begins with step `step`, or the next one before it, and goes towards earlier ones. The first `skip`
    things of that step were read."""

    edition: str
    step: int
    skip: int = 0

    def __str__(self) -> str:
        return f"{self.edition}.{self.step}.{self.skip}"

    @classmethod
    def of(cls, text: str) -> Self | None:
        """The cursor that was written so. None if it is none."""
        found = _TEXT.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))


def edition_of(db: sqlite3.Connection, database: Path) -> str:
    """Names the database and its present lineage."""
    file = database.stat()
    (lineages,) = db.execute("SELECT count(*) FROM lineages").fetchone()
    return f"{file.st_dev:x}-{file.st_ino:x}-{lineages}"
