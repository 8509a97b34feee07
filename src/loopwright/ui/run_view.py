"""One run as the page reads it: its files, opened only if they are inside of its folder, and what is kept of
them in memory.

Several requests may ask at once, so everything that changes is behind one lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from loopwright.buffer.archive import Archive, Parcel
from loopwright.buffer.payload_file import Payload, PayloadKey
from loopwright.errors import RefusedError, RunError
from loopwright.runs.event_index import EventIndex
from loopwright.runs.first_screen import opened_at
from loopwright.runs.metric_columns import MetricColumns, MetricRows
from loopwright.runs.run_folder import RunFolder
from loopwright.ui.token_text import TokenText

Kept = TypeVar("Kept")
KEPT_SECONDS = 3.0
"""How long an answer that needs much reading is given again, at least."""
KEPT_TIMES = 30
"""It is kept for so many times the seconds that it took, so that an open page of a huge run costs little."""


class SharedArchive(Archive):
    """An archive that several threads read: who comes while a file is read waits for it, instead of reading it too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._reading = Lock()

    def payload(self, parcel: Parcel, key: PayloadKey) -> Payload | None:
        with self._reading:
            return super().payload(parcel, key)


class RunView:
    """The run in `folder`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._root = folder.path.resolve()
        self._lock = Lock()
        self._metrics = MetricColumns(folder.metrics)
        self._events = EventIndex(folder.events)
        self._archive: tuple[int, Archive] | None = None
        self._texts: tuple[Hashable, TokenText] | None = None
        self._remembered: dict[Hashable, tuple[float, Any]] = {}

    @property
    def name(self) -> str:
        return self._folder.path.name

    @property
    def folder(self) -> RunFolder:
        return self._folder

    def inside(self, path: Path) -> Path:
        """The path, if no link on it leads out of the run's folder. Who opens a pipe there would wait for ever."""
        real = path.resolve()
        if not real.is_relative_to(self._root):
            raise RefusedError(
                f"{path.name} of this run leads out of its folder", remedy="replace the link by the file", status=403
            )
        if real.exists() and not (real.is_file() or real.is_dir()):
            raise RefusedError(f"{path.name} of this run is no file", remedy="remove it", status=403)
        return path

    @property
    def database(self) -> Path:
        """The run's rollouts. Raises if there are none yet."""
        path = self.inside(self._folder.rollouts)
        if not path.is_file():
            raise RefusedError("this run has stored no rollouts yet", remedy="wait for its first step", status=404)
        return path

    def archive(self) -> Archive:
        """The archive as it is now: a run that resumes may replace its files."""
        folder = self.inside(self._folder.path / "archive")
        changed = folder.stat().st_mtime_ns if folder.is_dir() else 0
        with self._lock:
            if self._archive is None or self._archive[0] != changed:
                self._check_links(folder)
                self._archive = changed, SharedArchive(folder)
            return self._archive[1]

    def _check_links(self, folder: Path) -> None:
        """Refuse links that lead out. Of a thousand files, only links are looked at closely."""
        if folder.is_dir():
            with os.scandir(folder) as entries:
                links = [entry.path for entry in entries if entry.is_symlink()]
            for link in links:
                self.inside(Path(link))

    def columns(self, names: Sequence[str], since: int = 0) -> MetricRows:
        self.inside(self._folder.metrics)
        with self._lock:
            self._metrics.refresh()
            return self._metrics.read(names, since=since)

    def metric_names(self) -> list[str]:
        self.inside(self._folder.metrics)
        with self._lock:
            self._metrics.refresh()
            return self._metrics.names

    def series(self, name: str) -> list[tuple[int, float]]:
        self.inside(self._folder.metrics)
        with self._lock:
            self._metrics.refresh()
            return self._metrics.series(name)

    def times(self) -> list[float]:
        """When each step of the metrics ended."""
        with self._lock:
            return self._metrics.times

    def time_of(self) -> dict[int, float]:
        """When each step was written last."""
        with self._lock:
            return self._metrics.time_of

    def remembered(self, name: Hashable, make: Callable[[], Kept]) -> Kept:
        """What `make` gives, or has given a moment ago. Several pages that ask at once cost one reading."""
        with self._lock:
            until, found = self._remembered.get(name, (0.0, None))
        begun = time.monotonic()
        if begun > until:
            found = make()
            now = time.monotonic()
            with self._lock:
                self._remembered[name] = now + max(KEPT_SECONDS, KEPT_TIMES * (now - begun)), found
        return cast(Kept, found)

    def told_at(self) -> float | None:
        """When the driver last told what it does; None if it never did."""
        try:
            return self.inside(self._folder.status).stat().st_mtime
        except FileNotFoundError:
            return None

    def event_written_at(self) -> float:
        """When the latest event was written: work is told of when it ends."""
        try:
            return self.inside(self._folder.events).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def opened_at(self) -> float:
        """When the last process that worked on the run took its lock."""
        self.inside(self._folder.lock)
        return opened_at(self._folder)

    def progress(self) -> dict[str, Any]:
        """How far the metrics and the events are, cheap enough to ask every second."""
        self.inside(self._folder.metrics)
        self.inside(self._folder.events)
        with self._lock:
            self._metrics.refresh()
            self._events.refresh()
            return {
                "events": self._events.rows,
                "edition": self._metrics.edition,
                "rows": self._metrics.rows,
                "step": self._metrics.last_step,
                "at": self._metrics.last_time,
            }

    def events(self, steps: Sequence[int]) -> list[dict[str, Any]]:
        self.inside(self._folder.events)
        with self._lock:
            self._events.refresh()
            return self._events.of(steps)

    def event_steps(self) -> list[int]:
        self.inside(self._folder.events)
        with self._lock:
            self._events.refresh()
            return self._events.steps

    def engine_events(self) -> list[dict[str, Any]]:
        self.inside(self._folder.events)
        with self._lock:
            self._events.refresh()
            return list(self._events.of_engines)

    def texts(self) -> TokenText:
        """The texts of token ids. A run that was started over may have another tokenizer."""
        file = self.inside(self._folder.tokenizer / "tokenizer.json")
        found = file.stat() if file.is_file() else None
        mark = None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
        with self._lock:
            if self._texts is None or self._texts[0] != mark:
                try:
                    self._texts = mark, TokenText.read(file)
                except RunError as error:
                    self._texts = mark, TokenText(why_not=error.message)
            return self._texts[1]
