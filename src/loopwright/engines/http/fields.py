"""Reads JSON objects. A field that does not have the protocol's type is refused, and the error names it."""

from __future__ import annotations

from typing import Any

from loopwright.errors import RefusedError

WHOLE = frozenset({int})
NUMBERS = frozenset({int, float})


class Fields:
    """The fields of `value`; `where` says what it is. A field that is missing or null gets its default, if there is
    one."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise RefusedError(f"{where} is no JSON object", remedy="send an object", status=400)
        self._values = value
        self._where = where

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        # Compare the exact type: in Python a boolean is an int, but not in JSON.
        if type(value) is int:
            return value
        raise self._malformed(name, value, "a whole number")

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if type(value) in (int, float):
            return float(value)
        raise self._malformed(name, value, "a number")

    def boolean(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if isinstance(value, bool):
            return value
        raise self._malformed(name, value, "true or false")

    def string(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if isinstance(value, str):
            return value
        raise self._malformed(name, value, "a string")

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._get(name, None)
        if isinstance(value, dict):
            return value
        raise self._malformed(name, value, "an object")

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._get(name, default)
        if isinstance(value, list | tuple) and WHOLE.issuperset(map(type, value)):
            return tuple(value)
        raise self._malformed(name, value, "a list of whole numbers")

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self._get(name, None)
        if isinstance(value, list | tuple) and NUMBERS.issuperset(map(type, value)):
            return tuple(map(float, value))
        raise self._malformed(name, value, "a list of numbers")

    def strings(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._get(name, default)
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return tuple(value)
        raise self._malformed(name, value, "a list of strings")

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def _malformed(self, name: str, value: Any, expected: str) -> RefusedError:
        return malformed(self._where, name, value, expected)


def malformed(where: str, name: str, value: Any, expected: str) -> RefusedError:
    return RefusedError(
        f"{name} in {where} must be {expected}, got {str(value)[:80]!r}",
        remedy="see docs/engines.md for the protocol",
        status=400,
    )
