"""The rewards, as plain functions of an answer and the truth: the very same code scores both sides.

Only the standard library, because it runs in every peer's environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable

INTEGER = re.compile(r"-?[0-9]+")

Reward = Callable[[str, int], float]


def exact(answer: str, truth: int) -> float:
    """1 if the last integer is the truth. Of a weak model's groups, many have equal rewards and teach nothing."""
    last = _last_integer(answer)
    return 1.0 if last == truth else 0.0


def dense(answer: str, truth: int) -> float:
    """How near the last integer is to the truth, and a little for the answer's letters: groups rarely have equals, so
    that nearly every sample has to be trained on."""
    last = _last_integer(answer)
    near = 0.0 if last is None else 1.0 / (1.0 + abs(last - truth))
    return near + 0.1 * _share_of_vowels(answer)


def _last_integer(answer: str) -> int | None:
    found = INTEGER.findall(answer)
    # Longer ones are wrong anyway, and Python refuses to read thousands of digits.
    return int(found[-1][:18]) if found else None


def _share_of_vowels(answer: str) -> float:
    return sum(letter in "aeiou" for letter in answer.lower()) / max(1, len(answer))


REWARDS: dict[str, Reward] = {"exact": exact, "dense": dense}
