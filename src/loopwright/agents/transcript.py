"""Checks the messages of an agent when it sends them: they must be renderable, and storable as JSON.

An agent is the user's code and may send anything. Messages that pass this check can be stored later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from loopwright.errors import AgentError
from loopwright.types import Message

_JSON = json.JSONEncoder(allow_nan=False)


def transcript_of(messages: object, *, verb: str) -> tuple[Message, ...]:
    """The messages unchanged. Raises an AgentError that names a message that cannot be stored. `verb` says what the
    agent did with them."""
    if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise AgentError(
            f"the agent {verb} {messages!r:.80}, which is no transcript",
            remedy="use a list of messages, each a dict with `role` and `content`",
        )
    for number, message in enumerate(messages):
        _check_storable(number, message, verb)
    return tuple(messages)


def _check_storable(number: int, message: Message, verb: str) -> None:
    if type(message) is dict and all(type(name) is str and type(text) is str for name, text in message.items()):
        return  # as most messages are: JSON holds every text
    try:
        _JSON.encode(dict(message))
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentError(
            f"the agent {verb} message {number} ({message['role']}), which cannot be stored as JSON: {error}",
            remedy="use strings, finite numbers, booleans, None, lists and dicts; make dicts of an SDK's objects",
            message_number=number,
        ) from error
