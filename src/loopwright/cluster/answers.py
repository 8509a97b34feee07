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
    """The method raised. `pickled` is the exception; the process that reads it may lack its class, so `words` and
    `trace` say the same as texts."""

    pickled: bytes
    error: str
    words: str
    trace: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The process of the actor ends itself, for this reason."""

    words: str


Answer = Returned | Raised | Ending


def raised(error: BaseException) -> Raised:
    """The exception as a value. One that cannot travel becomes a RemoteError that quotes it; so does one that would end
    more than a call, such as KeyboardInterrupt."""
    name, words = type(error).__name__, _words(error)
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickled = pickle.dumps(error)
        if isinstance(error, Exception) and type(pickle.loads(pickled)) is type(error):
            return Raised(pickled, name, words, trace)
    except Exception:  # the user's class may fail in whatever way
        pass
    return Raised(pickle.dumps(_quoted(name, words, trace)), name, words, trace)


def opened(answer: Returned | Raised) -> Any:
    """What the method returned. Raises what it raised."""
    if isinstance(answer, Returned):
        return answer.value
    try:
        error = pickle.loads(answer.pickled)
    except Exception as unknown:  # a class that only the actor has
        raise _quoted(answer.error, answer.words, answer.trace) from unknown
    raise error


def _quoted(name: str, words: str, trace: str) -> RemoteError:
    remedy = "see the log of the actor in the run folder"
    return RemoteError(f"{name}: {words}", remedy=remedy, error=name, trace=trace)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's class may fail in whatever way
        return "it cannot be shown"
