"""The schema of sources: where tasks come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loopwright.config.base import Section, Text


class JsonlData(Section):
    """One task per line of a file."""

    kind: Literal["jsonl"] = "jsonl"
    path: Text
    shuffle: bool = True


class PythonData(Section):
    """Tasks from the user's function, called once with `args`."""

    kind: Literal["python"] = "python"
    path: Text
    args: dict[str, Any] = Field(default_factory=dict)
    shuffle: bool = True


DataConfig = Annotated[JsonlData | PythonData, Field(discriminator="kind")]
