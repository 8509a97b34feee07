"""The schema of sources: where tasks come from.

Everything that is known of a kind of data is on its class here. Its source is opened in `data/sources.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from loopwright.config.base import Count, CountOrZero, Section, Text
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import KeyPath, Problem


class DataKind(Section):
    """What every kind of data says about itself. Other modules ask these questions, and never which kind it is. Each
    kind also has a `label` for summaries."""

    reads_late: ClassVar[bool] = False
    """Whether a row is read only when its task is drawn. Then opening the source does not find bad rows."""

    @property
    def opens_lightly(self) -> bool:
        """Whether opening it is fast and runs no user code."""
        return False

    def overlap(self, trained: DataKind) -> str | None:
        """What to do about tasks that are both in this evaluation's data and in `trained`. None if the config shows no
        such tasks."""
        order = {"shuffle"}
        is_same = self.model_dump(exclude=order) == trained.model_dump(exclude=order)
        return "hold some tasks out" if is_same else None


class Columns(Section):
    """Which column of a row becomes which part of a task; a dot reaches into a column. None means the usual names."""

    prompt: Text | None = None
    truth: Text | None = None
    id: Text | None = None


class Rows(DataKind):
    """What all sources of rows have in common. `map` is the user's function, from a row to a task."""

    nulls_are_absent: ClassVar[bool] = False
    """Whether an empty column counts as missing: in a table, every row has every column."""

    path: Text
    columns: Columns = Columns()
    map: Text | None = None
    shuffle: bool = True

    @property
    def label(self) -> str:
        return self.path

    def needs(self) -> Iterator[Need]:
        if self.map is not None:
            yield Need(Outside.CODE, ("map",), self.map)

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.map is not None:
            yield ("columns",), "map makes the task of the whole row"


class JsonlData(Rows):
    """One task per line of a file."""

    kind: Literal["jsonl"] = "jsonl"

    @property
    def opens_lightly(self) -> bool:
        return self.map is None

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.FILE, ("path",), self.path)
        yield from super().needs()


class ParquetData(Rows):
    """One task per row of a Parquet file, of all files in a folder, or of those that a glob pattern matches."""

    reads_late = True
    nulls_are_absent = True

    kind: Literal["parquet"] = "parquet"

    @property
    def opens_lightly(self) -> bool:
        return self.map is None

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, ("kind",), "parquet")
        yield Need(Outside.TABLES, ("path",), self.path)
        yield from super().needs()


class DatasetData(Rows):
    """A folder of Hugging Face datasets: written by `save_to_disk`, or a snapshot of a repository."""

    reads_late = True
    nulls_are_absent = True

    kind: Literal["dataset"] = "dataset"
    split: Text = "train"
    subset: Text | None = None

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, ("kind",), "datasets")
        yield Need(Outside.FOLDER, ("path",), self.path)
        yield from super().needs()


class PythonData(DataKind):
    """Tasks from the user's function, called once with `args`."""

    kind: Literal["python"] = "python"
    path: Text
    args: dict[str, Any] = Field(default_factory=dict)
    shuffle: bool = True

    @property
    def label(self) -> str:
        return self.path

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.CODE, ("path",), self.path)


class ReasoningGymData(DataKind):
    """`size` generated tasks of one family; `config` holds the family's own settings."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    family: Text
    size: Count = 500
    seed: CountOrZero = 0
    config: dict[str, Any] = Field(default_factory=dict)
    instruction: str = "Put only the final answer between <answer> and </answer>."
    shuffle: bool = True

    @property
    def label(self) -> str:
        return f"{self.kind} {self.family}"

    def overlap(self, trained: DataKind) -> str | None:
        if not isinstance(trained, ReasoningGymData):
            return super().overlap(trained)
        # The n-th task is made from the seed plus n, so neighbouring seeds share nearly all tasks.
        apart = self.seed >= trained.seed + trained.size or trained.seed >= self.seed + self.size
        same = (self.family, self.config) == (trained.family, trained.config)
        return f"set its seed to {trained.seed + trained.size} or more" if same and not apart else None

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, ("kind",), "reasoning-gym")

    def problems(self) -> Iterator[Problem]:
        for name in ("size", "seed"):
            if name in self.config:
                yield Problem(("config", name), f"stands beside data.{name}", f"write it as data.{name}")


class HarborData(DataKind):
    """The tasks of Harbor in the subfolders of `path`. `skip_broken` leaves out those that cannot be read."""

    kind: Literal["harbor"] = "harbor"
    path: Text
    skip_broken: bool = False
    shuffle: bool = True

    @property
    def opens_lightly(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return self.path

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.FOLDER, ("path",), self.path)


RowsConfig = JsonlData | ParquetData | DatasetData
DataConfig = Annotated[
    JsonlData | ParquetData | DatasetData | PythonData | ReasoningGymData | HarborData, Field(discriminator="kind")
]
