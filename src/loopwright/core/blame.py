"""Where an exception of the user's code came from, in words that point at their file."""

from __future__ import annotations

import traceback
from pathlib import Path


def blame(error: BaseException, file: str | None = None) -> str:
    """`KeyError: 'truth' (judge.py:12, in judge)`.

    The place is the innermost frame in `file`; without such a frame, the innermost of all.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(code, line) for code, line in frames if code.co_filename == file] or frames
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not own:
        return what
    code, line = own[-1]
    return f"{what} ({Path(code.co_filename).name}:{line}, in {code.co_name})"
