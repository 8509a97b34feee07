"""The errors about a user's function that chooses what is trained (a filter, or a choice of chains)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loopwright.core.blame import blame
from loopwright.errors import FilterError


@dataclass(frozen=True, slots=True)
class ChoiceBlame:
    """`option` is the config option that names the function, and `path` is its value."""

    option: str
    path: str

    def raised(self, error: BaseException, function: Callable[..., Any]) -> FilterError:
        return self.error(f"raised {blame(error, function)}", type(error).__name__)

    def late(self, seconds: float) -> FilterError:
        return self.error(f"said nothing within {seconds:g} s, and was stopped", "Timeout")

    def died(self, how: BaseException) -> FilterError:
        return self.error(f"took its worker process down ({type(how).__name__}: {how})", "WorkerDied")

    def returned(self, value: object, expected: str) -> FilterError:
        return self.error(f"returned {value!r:.60}; it must return {expected}", "WrongReturn")

    def error(self, what: str, kind: str) -> FilterError:
        remedy = "fix it, or raise produce.filter_timeout_seconds if it only needs more time"
        return FilterError(f"{self.option} {self.path!r} {what}", remedy=remedy, error=kind)
