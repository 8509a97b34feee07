"""The names of a run's weights on a server that is not ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionLabels:
    """They hold the lineage too: after a resume the same number names other weights. A label is also the salt of the
    server's prefix cache, so keys of other weights are never read."""

    run: str
    lineage: int

    def of(self, version: int) -> str:
        return f"{self.run}:{self.lineage}:{version}"

    def read(self, label: str) -> int | None:
        """The version that a label names. None if it is not a label of this run and lineage."""
        number = label.rpartition(":")[2]
        return int(number) if number.isdigit() and self.of(int(number)) == label else None
