"""What a page asks for: the parameters of a request, checked."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TypeVar

from starlette.datastructures import QueryParams

from loopwright.errors import RefusedError
from loopwright.runs.cursor import Cursor
from loopwright.types import RolloutKey

Kind = TypeVar("Kind", bound=StrEnum)
LARGEST = 1 << 53


class Asked:
    """The parameters. A wrong one is refused, and the refusal names it."""

    def __init__(self, given: QueryParams) -> None:
        self._given = given

    def text(self, name: str, most: int = 500) -> str | None:
        value = self._given.get(name)
        if value is not None and len(value) > most:
            raise self._wrong(name, f"at most {most} characters")
        return value or None

    def texts(self, name: str) -> list[str]:
        return self._given.getlist(name)[:200]

    def number(self, name: str, default: int) -> int:
        found = self.maybe_number(name)
        return default if found is None else found

    def maybe_number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdecimal() or len(value) > 16 or int(value) > LARGEST:
            raise self._wrong(name, "a whole number")
        return int(value)

    def cursor(self) -> Cursor | None:
        value = self.text("cursor")
        found = None if value is None else Cursor.of(value)
        if value is not None and found is None:
            raise self._wrong("cursor", "the one of the answer before, or none")
        return found

    def real(self, name: str) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self._wrong(name, "a number")
        return number

    def one_of(self, name: str, kinds: type[Kind]) -> Kind | None:
        value = self.text(name)
        try:
            return None if value is None else kinds(value)
        except ValueError:
            raise self._wrong(name, f"one of {', '.join(kinds)}") from None

    def key(self) -> RolloutKey:
        """A rollout, as task set/draw/member/attempt. The name of a task set may contain slashes."""
        task_set, *numbers = (self.text("key") or "").rsplit("/", 3)
        if len(numbers) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in numbers):
            raise self._wrong("key", "task set/draw/member/attempt")
        return RolloutKey(task_set, *map(int, numbers))

    def _wrong(self, name: str, wanted: str) -> RefusedError:
        return RefusedError(f"the parameter {name} is wrong", remedy=f"send {wanted}", status=400)
