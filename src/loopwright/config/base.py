"""What every part of the schema has in common: frozen, strict about types, and closed to unknown keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from loopwright.config.needs import Need
from loopwright.config.problems import KeyPath, Problem

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
    """A mapping in the config file. What follows from its own settings alone, it says itself; `config/checks` has what
    depends on several sections. Places are seen from the section."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def needs(self) -> Iterator[Need]:
        """What must be there outside of the config."""
        yield from ()

    def problems(self) -> Iterator[Problem]:
        """What cannot work."""
        yield from ()

    def warnings(self) -> Iterator[Problem]:
        """What works, but not as somebody may expect."""
        yield from ()

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        """The settings that nothing reads, each with why. Those that have their default are not reported."""
        yield from ()

    def unrepeatable(self) -> Iterator[tuple[KeyPath, str]]:
        """The settings by which two runs may differ that are alike in all else, each with a remedy."""
        yield from ()

    def named_values(self) -> Iterator[tuple[str, str]]:
        """Values that the user gave under names of their own choice: some of these names say that it is a secret."""
        yield from ()


def sections(value: object, place: KeyPath = ()) -> Iterator[tuple[KeyPath, Section]]:
    """Every section in `value`, itself included, with its place."""
    if isinstance(value, Section):
        yield place, value
        for name in type(value).model_fields:
            yield from sections(getattr(value, name), (*place, name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from sections(item, (*place, key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from sections(item, (*place, index))


def needs_of(section: Section) -> Iterator[Need]:
    """The needs of a section and of all sections in it, with places seen from `section`."""
    for place, part in sections(section):
        yield from (replace(need, place=(*place, *need.place)) for need in part.needs())
