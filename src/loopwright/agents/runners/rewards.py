"""The reward of a program: from a file, from an exit code, or from a verifier that runs after it in the same folder.

A reward that cannot be read is a failure with its cause, and never 0 (R2).
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright.errors import VerifierError
from loopwright.types import Scored

LONGEST_REWARD = 1 << 16
"""Bytes of a reward file."""


def reward_in_file(folder: Path, name: str) -> Scored:
    """The reward in a file: a number, or a JSON object with `reward` and other numbers, which are kept as its parts."""
    try:
        with open(inside(folder, name), "rb", opener=_open_plainly) as file:
            text = file.read(LONGEST_REWARD + 1)
    except FileNotFoundError as error:
        raise VerifierError(
            f"there is no reward file {name}", remedy="write the reward into it, a number or JSON"
        ) from error
    except OSError as error:
        raise VerifierError(f"the reward file {name} cannot be read: {error}", remedy="write a plain file") from error
    if len(text) > LONGEST_REWARD:
        raise VerifierError(f"the reward file {name} is too long", remedy="write a number, or a short JSON object")
    return _parsed(text.decode("utf-8", "replace"), name)


def inside(folder: Path, name: str) -> Path:
    """The path of a file in `folder`. Raises OSError if a folder on the way is a link that leads out: the program may
    have made it, and it could lead to any file of this user."""
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise OSError(errno.ELOOP, "a link leads out of the program's folder", str(path))
    return path


def reward_of_code(code: int, scores: Mapping[int, float], who: str) -> Scored:
    """The reward that an exit code stands for. A code without a score is a failure."""
    if code in scores:
        return Scored(scores[code])
    known = ", ".join(map(str, sorted(scores)))
    raise VerifierError(
        f"{who} ended with {spelled_code(code)}, which stands for no reward",
        remedy=f"exit with one of {known}, or say what that code is worth, as in scores: {{0: 1.0, {code}: 0.0}}",
    )


def spelled_code(code: int) -> str:
    """An exit code in words. A negative one is a signal."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _open_plainly(path: str, flags: int) -> int:
    """A link is not followed, and a pipe that nobody writes to is not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _parsed(text: str, name: str) -> Scored:
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VerifierError(
            f"the reward file {name} holds {text.strip()!r:.80}, which is no number and no JSON",
            remedy="write a number, or a JSON object with `reward`",
        ) from error
    parts = told if isinstance(told, dict) else {"reward": told}
    numbers = finite_numbers(parts)
    if "reward" not in numbers:
        raise VerifierError(
            f"the reward file {name} holds {text.strip()!r:.80}, and no finite reward",
            remedy="write a finite number, or a JSON object with `reward`",
        )
    return Scored(numbers.pop("reward"), numbers)


def finite_numbers(told: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers under names that can be names of metrics."""
    named = {key: value for key, value in told.items() if key.isprintable()}
    return {key: number for key, value in named.items() if (number := _finite(value)) is not None}


def _finite(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
