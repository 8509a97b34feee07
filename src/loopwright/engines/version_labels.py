"""The names of a run's weights on a server that is not ours."""

from __future__ import annotations

import secrets
from dataclasses import dataclass


@dataclass(slots=True)
class VersionLabels:
    """They hold the lineage too: after a resume the same number names other weights. Engines outlive a lineage, so they
    read the present one here."""

    run: str
    lineage: int

    def of(self, version: int) -> str:
        return f"{self.run}:{self.lineage}:{version}"

    def adapter(self, version: int) -> str:
        """The name of an adapter. It is a file name too."""
        return f"{self.run}-{self.lineage}-v{version}"

    def salt(self, version: int) -> str:
        """A name for the keys that a server caches with these weights. Each load has another one: if the first load of
        a version did not pass its proof, its keys are not read after the second."""
        return f"{self.of(version)}#{secrets.token_hex(4)}"

    def read(self, label: str) -> int | None:
        """The version that a label names. None if it is not a label of this run and lineage."""
        number = label.rpartition(":")[2]
        return int(number) if number.isdigit() and self.of(int(number)) == label else None
