"""What a trainer tells of a train step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One train step that is done, with its metrics and those of the evaluation after it, if there was one.

    After the last one no step follows: the run is finished, or it was told to stop.
    """

    number: int
    metrics: Mapping[str, float]
    is_last: bool = False


def restart_metrics(learner_restarts: int) -> Mapping[str, float]:
    """Told by runs whose learner was lost, which are few."""
    return {"learner/restarts": float(learner_restarts)} if learner_restarts else {}
