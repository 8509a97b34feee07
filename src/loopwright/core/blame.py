"""Says where in the user's file an exception came from."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def blame(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """`KeyError: 'truth' (judge.py:12, in judge)`.

    The place is the innermost frame in the file of `function`. Without such a frame it is the innermost frame of all.
    """
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in frames if code is not None and place[0].co_filename == code.co_filename] or frames
    what = ": ".join(filter(None, (type(error).__name__, _words(error))))
    if not own:
        return what
    where, line = own[-1]
    return f"{what} ({Path(where.co_filename).name}:{line}, in {where.co_name})"


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's own code again
        return "its message cannot be shown"
