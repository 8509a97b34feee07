"""Reads a file of JSON lines that grows, each complete line once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class GrowingLines:
    """Call `new` again and again. The file must not shrink meanwhile: a run rewinds its metrics only when it opens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The records since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            while (line := file.readline()).endswith(b"\n"):
                self._position += len(line)
                yield json.loads(line)
