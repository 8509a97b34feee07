"""What every part of the schema has in common: frozen, strict about types, and closed to unknown keys."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")

# YAML knows lists and texts only: strict mode would refuse them where a tuple or an enum is meant.
FromYaml = Annotated[T, Field(strict=False)]

# YAML reads a bare `off` as false; where it is one of the words to choose from, the word is meant.
OffIsAWord = BeforeValidator(lambda value: "off" if value is False else value)

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A mapping in the config file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
