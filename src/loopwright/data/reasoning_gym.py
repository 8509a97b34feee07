"""Tasks that reasoning_gym generates: one family, with a seed. Each task is made when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from loopwright.config import ReasoningGymData
from loopwright.config.problems import suggest
from loopwright.core.gym_entry import entry_metadata
from loopwright.errors import DataError
from loopwright.types import Task


@dataclass(frozen=True, slots=True, eq=False)
class ReasoningGymSource:
    """`generator` makes the n-th entry. The task's metadata holds what the family's own scorer needs."""

    family: str
    config: Mapping[str, Any]
    instruction: str
    generator: Any

    @classmethod
    def open(cls, data: ReasoningGymData) -> ReasoningGymSource:
        """Make the generator and one task, so that a family whose tasks cannot be stored is refused at once."""
        if data.family not in DATASETS:
            raise DataError(
                f"reasoning_gym has no family {data.family!r}",
                remedy=suggest(data.family, sorted(DATASETS), "families"),
                family=data.family,
            )
        _check_settings(data)
        try:
            generator = create_dataset(data.family, size=data.size, seed=data.seed, **data.config)
        except Exception as error:  # the family's own checks, mostly asserts
            raise DataError(
                f"reasoning_gym's {data.family} refuses its config: {error or type(error).__name__}",
                remedy="change data.config",
                family=data.family,
            ) from error
        source = cls(data.family, data.config, data.instruction, generator)
        source[0]
        return source

    def __len__(self) -> int:
        return len(self.generator)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        entry = self.generator[index]
        try:
            metadata = entry_metadata(self.family, self.config, entry)
        except ValueError as error:
            raise DataError(
                f"reasoning_gym's {self.family} cannot be stored: {error}",
                remedy="choose another family",
                family=self.family,
            ) from error
        question = "\n\n".join(part for part in (entry["question"].strip(), self.instruction) if part)
        return Task.ask(f"{self.family}:{index}", question, truth=entry["answer"], **metadata)


def _check_settings(data: ReasoningGymData) -> None:
    known = [each.name for each in fields(DATASETS[data.family][1]) if each.name not in ("size", "seed")]
    for name in data.config:
        if name not in known:
            raise DataError(
                f"reasoning_gym's {data.family} has no setting {name!r}",
                remedy=suggest(name, known, "its settings"),
                family=data.family,
            )
