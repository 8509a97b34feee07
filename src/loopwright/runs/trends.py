"""How the latest steps of a run compare with the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

RECENT = 5
"""How many steps count as the latest."""
FIRST = 10
"""The steps at the beginning that later ones are compared with."""

Series = Mapping[int, float]
"""Values by step."""


def added(series: Iterable[Series]) -> dict[int, float]:
    total: dict[int, float] = {}
    for one in series:
        for step, value in one.items():
            total[step] = total.get(step, 0.0) + value
    return total


class Share:
    """A part of a whole, over the latest steps."""

    def __init__(self, part: Series, whole: Series) -> None:
        self._part, self._whole = part, whole
        self._steps = sorted(whole)

    def _over(self, end: int) -> tuple[float, float]:
        steps = self._steps[max(0, end - RECENT) : end]
        return sum(self._part.get(step, 0.0) for step in steps), sum(self._whole[step] for step in steps)

    @property
    def part(self) -> float:
        return self._over(len(self._steps))[0]

    @property
    def whole(self) -> float:
        return self._over(len(self._steps))[1]

    @property
    def now(self) -> float:
        return self._at(len(self._steps))

    def _at(self, end: int) -> float:
        part, whole = self._over(end)
        return part / whole if whole else 0.0

    @property
    def where(self) -> str:
        return where_of(self._steps)

    @property
    def latest(self) -> int | None:
        """The latest step that shows it."""
        return next((step for step in reversed(self._steps) if self._part.get(step)), None)

    @property
    def first(self) -> int | None:
        """The first step of all that shows it."""
        return next((step for step in self._steps if self._part.get(step)), None)

    def since(self, threshold: float) -> int | None:
        """The first step of the stretch that goes on now."""
        end = len(self._steps)
        while end > 1 and self._at(end - 1) >= threshold:
            end -= 1
        return next((step for step in self._steps[max(0, end - RECENT) : end] if self._part.get(step)), None)


class SinceStart:
    """The latest steps beside the first ones."""

    def __init__(self, values: Series) -> None:
        self._steps = sorted(values)
        self._values = [values[step] for step in self._steps]
        self.is_known = len(values) >= FIRST + RECENT
        self.before = statistics.median(self._values[:FIRST]) if self.is_known else 0.0
        self.now = statistics.median(self._values[-RECENT:]) if self.is_known else 0.0

    @property
    def where(self) -> str:
        return where_of(self._steps)

    @property
    def latest(self) -> int:
        return self._steps[-1]

    def since(self, is_far: Callable[[float], bool]) -> int:
        """The first far step of the stretch that goes on now. A single step that is not far does not end it."""
        end = len(self._steps)
        while end > FIRST and is_far(statistics.median(self._values[end - 1 - RECENT : end - 1])):
            end -= 1
        places = range(max(FIRST, end - RECENT), len(self._steps))
        return next((self._steps[place] for place in places if is_far(self._values[place])), self._steps[-1])


def where_of(steps: Sequence[int]) -> str:
    recent = steps[-RECENT:]
    return f"steps {recent[0]} to {recent[-1]}" if len(recent) > 1 else f"step {recent[0]}"
