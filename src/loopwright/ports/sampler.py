"""Where tasks come from."""

from __future__ import annotations

from typing import Protocol

from loopwright.types import Task


class TaskSource(Protocol):
    """A fixed, finite list of tasks."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...


class Sampler(Protocol):
    """Says which task the n-th draw is. It is a pure function of (seed, draw). Its only state is the number of draws,
    so it can be saved and resumed, and a draw can be repeated exactly."""

    def __len__(self) -> int:
        """Tasks in one epoch."""
        ...

    def task(self, draw: int) -> Task: ...
