"""The limit of a durable buffer: blobs of the same size as rows of a plain SQLite table, one transaction per batch, in
a loop of the thread that owns the connection. Nothing is encoded, checked or handed from thread to thread."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from benchmarks.workers.port import Port, Stopwatch

BYTES_PER_TOKEN = 13


def main(port: Port) -> None:
    spec = port.spec
    blob = os.urandom(BYTES_PER_TOKEN * spec["tokens"])
    with closing(sqlite3.connect(Path(spec["folder"]) / "rows.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE samples (place INTEGER PRIMARY KEY, sample BLOB)")
        port.ready()
        for watch in port.rounds():
            puts, gets = {}, {}
            for batch in spec["batches"]:
                puts[batch], gets[batch] = _pass(db, blob, spec["samples"], batch)
            port.answer(watch.stop(), samples=spec["samples"], put_seconds=puts, get_seconds=gets)


def _pass(db: sqlite3.Connection, blob: bytes, samples: int, batch: int) -> tuple[float, float]:
    """Seconds of putting and of getting."""
    (first,) = db.execute("SELECT coalesce(max(place), 0) + 1 FROM samples").fetchone()
    starts = range(first, first + samples, batch)
    watch = Stopwatch()
    for start in starts:
        db.execute("BEGIN")
        db.executemany("INSERT INTO samples VALUES (?, ?)", [(start + i, blob) for i in range(batch)])
        db.execute("COMMIT")
    put = watch.stop()["seconds"]
    watch = Stopwatch()
    for start in starts:
        db.execute("SELECT sample FROM samples WHERE place >= ? AND place < ?", (start, start + batch)).fetchall()
    return put, watch.stop()["seconds"]


if __name__ == "__main__":
    main(Port())
