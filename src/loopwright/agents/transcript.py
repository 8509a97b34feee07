"""Checks what an agent sends or returns: messages must be renderable, and everything storable as JSON.

An agent is the user's code and may send anything. What passes this check can be stored later, and holds values of
Python's own classes only: one of a class in the user's file could not be read in a process without that file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from loopwright.errors import AgentError
from loopwright.types import Failed, FailureCause, Message, Reward, Scored, Unscored

_JSON = json.JSONEncoder(allow_nan=False)
_PLAIN = frozenset({str, int, float, bool, type(None)})


def transcript_of(messages: object, *, verb: str) -> tuple[Message, ...]:
    """The messages as they would be stored. Raises an AgentError that names a message that cannot be stored. `verb`
    says what the agent did with them."""
    if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise AgentError(
            f"the agent {verb} {messages!r:.80}, which is no transcript",
            remedy="use a list of messages, each a dict with `role` and `content`",
        )
    return tuple(_storable(number, message, verb) for number, message in enumerate(messages))


def own_reward(given: object) -> Reward:
    """The reward that an agent gave itself; without one, none yet. Raises an AgentError if it cannot be stored."""
    match given:
        case None:
            return Unscored()
        case Failed(FailureCause() as cause, str() as error, str() as detail):
            return Failed(cause, _text(error), _text(detail))
        case Scored(value, Mapping() as parts, str() | None as answer, str() | None as evidence) if all(
            isinstance(name, str) for name in parts
        ) and all(map(_is_finite, (value, *parts.values()))):
            numbers = {_text(name): float(part) for name, part in parts.items()}
            told = (None if text is None else _text(text) for text in (answer, evidence))
            return Scored(float(value), numbers, *told)
    raise AgentError(
        f"the agent returned the reward {given!r:.80}, which cannot be stored",
        remedy="return a Scored with a finite number, `parts` from texts to numbers, and texts or None as `answer` and "
        "`evidence`",
    )


def _storable(number: int, message: Message, verb: str) -> Message:
    if type(message) is dict and all(type(name) is str and type(text) is str for name, text in message.items()):
        return message  # as most messages are: JSON holds every text
    try:
        encoded = _JSON.encode(dict(message))
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentError(
            f"the agent {verb} message {number} ({message['role']}), which cannot be stored as JSON: {error}",
            remedy="use strings, finite numbers, booleans, None, lists and dicts; make dicts of an SDK's objects",
            message_number=number,
        ) from error
    if _is_plain(message):
        return message
    plain: dict[str, Any] = json.loads(encoded)
    return plain


def _is_plain(value: object) -> bool:
    """Whether it consists of values of Python's own classes. It is no circle: JSON holds it."""
    if type(value) is dict:
        return all(type(name) in _PLAIN and _is_plain(inner) for name, inner in value.items())
    if type(value) is list or type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _is_finite(number: object) -> bool:
    return isinstance(number, Real) and math.isfinite(number)


def _text(text: str) -> str:
    """The same characters as a `str` of Python's own, whatever the class of `text` says of itself."""
    return str.__str__(text)
