"""What a call on an actor gave, as a value. Ray would wrap an exception, lose its cause, or fail to pickle it."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from loopwright.errors import RemoteError


@dataclass(frozen=True, slots=True)
class Returned:
    """The method returned this."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The method raised. The exception is pickled here: whoever reads it knows that it can be read."""

    pickled: bytes


Answer = Returned | Raised


def raised(error: BaseException) -> Raised:
    """The exception as a value. One that cannot travel becomes a RemoteError that quotes it; so does one that would end
    more than a call, such as KeyboardInterrupt."""
    try:
        pickled = pickle.dumps(error)
        if isinstance(error, Exception) and type(pickle.loads(pickled)) is type(error):
            return Raised(pickled)
    except Exception:  # the user's class may fail in whatever way
        pass
    trace = "".join(traceback.format_exception(error)).rstrip()
    quoted = RemoteError(
        f"{type(error).__name__}: {error}",
        remedy="see the log of the actor in the run folder",
        error=type(error).__name__,
        trace=trace,
    )
    return Raised(pickle.dumps(quoted))


def opened(answer: Answer) -> Any:
    """What the method returned. Raises what it raised."""
    if isinstance(answer, Returned):
        return answer.value
    try:
        error = pickle.loads(answer.pickled)
    except Exception as unknown:  # a class that only the actor has
        raise RemoteError(
            f"an exception of the actor cannot be read here: {unknown}",
            remedy="see the log of the actor in the run folder",
        ) from unknown
    raise error
