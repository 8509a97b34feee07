"""What every part of the schema has in common: frozen, strict about types, and closed to unknown keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from loopwright.config.needs import Need
from loopwright.config.problems import KeyPath, Problem

T = TypeVar("T")

# YAML has only lists and texts. Strict mode would refuse them for a tuple or an enum.
FromYaml = Annotated[T, Field(strict=False)]

# YAML reads a bare `off` as false. Where `off` is one of the choices, the word is meant.
OnOrOff = BeforeValidator(lambda value: {True: "on", False: "off"}[value] if isinstance(value, bool) else value)
"""YAML reads `on` and `off` as booleans."""
OffIsAWord = BeforeValidator(lambda value: "off" if value is False else value)

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class RefusedSettingError(ValueError):
    """Why a validator of ours refuses a value, and what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


def known_device(value: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is None:
        raise RefusedSettingError(
            "a device is auto, cpu, cuda, or cuda:N for the GPU with that number", "choose one of these"
        )
    return value


Device = Annotated[str, AfterValidator(known_device)]
"""What computes: `auto` is the first GPU that torch can use, or else the CPU."""


class Section(BaseModel):
    """A mapping in the config file. Its methods report what depends on its own settings alone; `config/checks` reports
    what depends on several sections. Places are relative to the section."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def needs(self) -> Iterator[Need]:
        """What must exist outside of the config."""
        yield from ()

    def problems(self) -> Iterator[Problem]:
        """What cannot work."""
        yield from ()

    def warnings(self) -> Iterator[Problem]:
        """What works, but probably not as the user expects."""
        yield from ()

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        """The settings that have no effect, each with the reason. Those that have their default are not reported."""
        yield from ()

    def unrepeatable(self) -> Iterator[tuple[KeyPath, str]]:
        """The settings that can make two equal runs differ, each with a remedy."""
        yield from ()

    def named_values(self) -> Iterator[tuple[str, str]]:
        """Values under names that the user chose. Some of these names show that the value is a secret."""
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
    """The needs of a section and of all sections in it, with places relative to `section`."""
    for place, part in sections(section):
        yield from (replace(need, place=(*place, *need.place)) for need in part.needs())
