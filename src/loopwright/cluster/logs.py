"""What actors and Ray itself say goes to files in the run folder. Until there is a folder, it is kept."""

from __future__ import annotations

import re
import threading
from collections import deque
from pathlib import Path

from loopwright.core.redaction import Redactor

KEPT_BYTES = 4 << 20
"""How much is kept while there is no folder. The oldest goes first."""


class ActorLogs:
    """Any thread may write."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._redact = Redactor()
        self._kept: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def write(self, name: str, output: bytes) -> None:
        """Add to the log of the actor of this name. `output` consists of whole lines."""
        with self._lock:
            if self._folder is not None:
                self._append(self._folder, name, output)
                return
            self._kept.append((name, output))
            self._size += len(output)
            while self._size > KEPT_BYTES:
                self._size -= len(self._kept.popleft()[1])

    def write_to(self, folder: Path, redact: Redactor) -> None:
        """From now on everything is written to files in `folder`, without secrets; also what was kept."""
        with self._lock:
            self._folder, self._redact = folder, redact
            while self._kept:
                self._append(folder, *self._kept.popleft())

    def _append(self, folder: Path, name: str, output: bytes) -> None:
        shown = self._redact(output.decode("utf-8", "replace"))
        file = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log"
        try:
            folder.mkdir(exist_ok=True)
            with file.open("a", encoding="utf-8") as opened:
                opened.write(shown)
        except OSError:
            # A run does not end because a log cannot be written. What needs the disk more will say so.
            pass
