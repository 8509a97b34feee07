"""Finds a text in the transcripts of a run, step by step, the latest first.

One call looks at as many steps as fit into its time, and says where to go on, also within a step. Only the texts are
read from an archived step, not its tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from loopwright.buffer.archive import Archive, Parcel, ParcelKind
from loopwright.buffer.storage.schema import snapshot
from loopwright.buffer.transcripts import decode_transcript
from loopwright.errors import RunError
from loopwright.runs.cursor import Cursor, edition_of
from loopwright.types import RolloutKey

AROUND = 60
"""How many characters are shown on each side of a hit."""


_Row = tuple[str, int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class Hit:
    """One rollout whose transcript has the text."""

    key: RolloutKey
    round: int
    step: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class Hits:
    """`next` is where to go on towards earlier steps; None if all were looked at. `steps` were looked at to their
    end; of these, `unsearched` could not be searched as a whole, because their file is missing or damaged."""

    hits: tuple[Hit, ...]
    next: Cursor | None
    steps: int
    unsearched: Mapping[int, str] = field(default_factory=dict)
    """Why, by step."""


def search(
    database: Path, text: str, *, cursor: Cursor | None = None, most: int = 100, seconds: float = 1.0
) -> Hits | None:
    """The rollouts of trained steps that have `text`, whatever its case, in a message, a call or an output. At most
    `most` of them, and the rest from `next` on. None if the run has another lineage than the cursor: start again."""
    deadline, hits, looked, unsearched = time.monotonic() + seconds, list[Hit](), 0, dict[int, str]()
    archive = Archive.beside(database)
    # Transcripts are JSON in ASCII, so the text is looked for as it is written there.
    needle = json.dumps(text)[1:-1]
    place = _place(database, cursor)
    while place is not None:
        if cursor is not None and cursor.edition != place.edition:
            return None
        told = len(hits)
        found, why_not = _candidates(database, archive, place.step, needle)
        in_step = islice(_hits(found, place.step, text), place.skip, None)
        hits += islice(in_step, most - told)
        if next(in_step, None) is not None:
            return Hits(tuple(hits), replace(place, skip=place.skip + len(hits) - told), looked, unsearched)
        if why_not is not None:
            unsearched[place.step] = why_not
        looked += 1
        cursor = replace(place, step=place.step - 1, skip=0)
        place = _place(database, cursor)
        if len(hits) >= most or time.monotonic() > deadline:
            break
    return Hits(tuple(hits), place, looked, unsearched)


def _place(database: Path, cursor: Cursor | None) -> Cursor | None:
    """The step at the cursor, or the next one before it, in the present edition. None if there is none."""
    with snapshot(database) as db:
        bound = 1 << 62 if cursor is None else cursor.step
        (step,) = db.execute("SELECT max(step) FROM groups WHERE step <= ?", (bound,)).fetchone()
        if step is None:
            return None
        return Cursor(edition_of(db, database), step, cursor.skip if cursor is not None and cursor.step == step else 0)


def _candidates(database: Path, archive: Archive, step: int, needle: str) -> tuple[list[_Row], str | None]:
    """The transcripts of one step that have `needle`, which may also be in the name of a field or in a tool's schema;
    and why transcripts of the step could not be read, if so."""
    path = archive.path(Parcel(ParcelKind.TRAINED, step))
    in_file, why_not = list[_Row](), None if path.is_file() else f"{path.name} is missing"
    try:
        if why_not is None:
            in_file = _in_file(path, needle)
    except RunError as error:
        why_not = error.message
    with snapshot(database) as db:
        # A file that an undone lineage has left lies there until the step is archived again.
        moved = {
            (*key,): stop is not None
            for *key, stop in db.execute(
                "SELECT task_set, draw, round, member, attempt, stop FROM groups JOIN rollouts"
                " USING (task_set, draw, round) WHERE step = ? AND messages IS NULL",
                (step,),
            )
        }
        found = [row for row in in_file if row[:5] in moved]
        found += db.execute(
            "SELECT task_set, draw, round, member, attempt, messages FROM groups JOIN rollouts"
            " USING (task_set, draw, round) WHERE step = ? AND messages IS NOT NULL AND messages LIKE ? ESCAPE '~'",
            (step, f"%{_escaped(needle)}%"),
        ).fetchall()
    # A rollout that failed before it ended has no transcript, wherever it is.
    return sorted(found), why_not if any(moved.values()) else None


def _hits(found: Iterable[_Row], step: int, text: str) -> Iterator[Hit]:
    for task_set, draw, round, member, attempt, messages in found:
        excerpt = next(_excerpts(messages, text), None)
        if excerpt is not None:
            yield Hit(RolloutKey(task_set, draw, member, attempt), round, step, excerpt)


def _in_file(path: Path, needle: str) -> list[_Row]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names = ["task_set", "draw", "round", "member", "attempt", "messages"]
    try:
        # Not `read_table`, whose first call takes long: it imports pandas, if that is installed.
        with pq.ParquetFile(path) as file:
            table = file.read(columns=names)
        matching = table.filter(pc.match_substring(table["messages"], needle, ignore_case=True))
        columns = [matching[name].to_pylist() for name in names]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {error}", remedy="restore it from a copy") from error
    return list(zip(*columns, strict=True))


def _escaped(text: str) -> str:
    return text.replace("~", "~~").replace("%", "~%").replace("_", "~_")


def _excerpts(messages: str, text: str) -> Iterator[str]:
    """Each text of the transcript that has it, cut to what is round the hit."""
    wanted, transcript = text.lower(), decode_transcript(messages)
    for said in (*_texts(transcript.messages), *_texts(transcript.output and asdict(transcript.output))):
        place = said.lower().find(wanted)
        if place >= 0:
            begin, end = max(0, place - AROUND), place + len(text) + AROUND
            piece = said[begin:end].replace("\n", " ").replace("\t", " ")
            yield f"{'…' if begin else ''}{piece}{'…' if end < len(said) else ''}"


def _texts(value: Any) -> Iterator[str]:
    """All texts in it, without names of fields and without who said them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "role":
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
