"""What a follower is told when it starts. It is sent in an environment variable, so that nobody else can read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

VARIABLE = "LOOPWRIGHT_FOLLOWER"


class Service(StrEnum):
    """Where the metrics go."""

    WANDB = "wandb"
    MLFLOW = "mlflow"


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """`folder` is that of the run, `run_id` its name among all runs, and `lineage` how often it was opened before.
    `name` is the name for people. `place` is where the service keeps it: a project, an experiment. `server` is its
    address, if it has one."""

    service: Service
    folder: str
    run_id: str
    lineage: int
    name: str
    place: str
    server: str | None = None
    owner: str | None = None
    online: bool = False

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> FollowerSettings:
        values = json.loads(text)
        return cls(**{**values, "service": Service(values["service"])})
