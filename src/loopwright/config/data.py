"""The schema of sources: where tasks come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loopwright.config.base import Count, CountOrZero, Section, Text


class Columns(Section):
    """Which column of a row becomes which part of a task; a dot reaches into a column. None: its usual names."""

    prompt: Text | None = None
    truth: Text | None = None
    id: Text | None = None


class Rows(Section):
    """What all sources of rows have in common. `map` is the user's function, from a row to a task."""

    path: Text
    columns: Columns = Columns()
    map: Text | None = None
    shuffle: bool = True


class JsonlData(Rows):
    """One task per line of a file."""

    kind: Literal["jsonl"] = "jsonl"


class ParquetData(Rows):
    """One task per row of a Parquet file, of all files in a folder, or of those that a glob pattern matches."""

    kind: Literal["parquet"] = "parquet"


class DatasetData(Rows):
    """A folder of Hugging Face datasets: written by `save_to_disk`, or a snapshot of a repository."""

    kind: Literal["dataset"] = "dataset"
    split: Text = "train"
    subset: Text | None = None


class PythonData(Section):
    """Tasks from the user's function, called once with `args`."""

    kind: Literal["python"] = "python"
    path: Text
    args: dict[str, Any] = Field(default_factory=dict)
    shuffle: bool = True


class ReasoningGymData(Section):
    """`size` generated tasks of one family; `config` holds the family's own settings."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    family: Text
    size: Count = 500
    seed: CountOrZero = 0
    config: dict[str, Any] = Field(default_factory=dict)
    instruction: str = "Put only the final answer between <answer> and </answer>."
    shuffle: bool = True


RowsConfig = JsonlData | ParquetData | DatasetData
DataConfig = Annotated[
    JsonlData | ParquetData | DatasetData | PythonData | ReasoningGymData, Field(discriminator="kind")
]
