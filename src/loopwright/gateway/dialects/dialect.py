"""What every dialect can do, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call
from loopwright.gateway.reading import count
from loopwright.gateway.refusals import invalid
from loopwright.render.canonical import value_of
from loopwright.types import Delta, Message, Tool
from loopwright.types.sampling import MOST_ALTERNATIVES

OF_NO_MATTER = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    "client_metadata",
)
"""What clients of OpenAI's APIs send that changes no answer, anywhere."""

Recall = Callable[[str], Message | None]
"""Returns the message of an earlier answer of the same session by its id, or None if there is no such answer."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an answer before its first token. `prompt_ids` are there if the call asked for them."""

    id: str
    created: int
    prompt_tokens: int
    cached_tokens: int
    prompt_ids: tuple[int, ...] = ()


class Stream(Protocol):
    """Writes one answer as server-sent events, each once and in order."""

    def start(self) -> bytes: ...

    def delta(self, sample: int, delta: Delta) -> bytes:
        """A delta of sample number `sample`. It may be empty: some dialects have no event for some deltas."""
        ...

    def end(self, answers: Sequence[Answer]) -> bytes: ...

    def failed(self, error: RefusedError) -> bytes:
        """End the answer with an error. Its client may retry."""
        ...


def nothing(answer: str) -> None:
    """A `Recall` of a session that has no answers yet."""


class Dialect(Protocol):
    """One API. Sessions list its base URL under `name`."""

    @property
    def name(self) -> str: ...

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        """The request in canonical form. Raises RefusedError if it cannot be understood.

        `recall` is for APIs in which a request may name earlier messages instead of repeating them.
        """
        ...

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """The whole answer as one body."""
        ...

    def stream(self, call: Call, head: Head) -> Stream: ...

    def error(self, error: RefusedError) -> Mapping[str, Any]:
        """A refusal in the form of this API (S4)."""
        ...


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    prefix = b"" if name is None else f"event: {name}\n".encode()
    return b"%sdata: %s\n\n" % (prefix, orjson.dumps(data))


def tool(name: str, description: str, parameters: Any) -> Tool:
    """A tool in canonical form. Other fields of a client (strictness, caching) do not reach the model."""
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {"name": name, "description": description, "parameters": schema}


def alternatives_of(body: Mapping[str, Any], name: str) -> int:
    """How many of the likeliest tokens a request asks for in the place of each sampled one."""
    asked = count(body, name, least=0)
    if asked is not None and asked > MOST_ALTERNATIVES:
        raise invalid(name, f"{asked} are too many", remedy=f"ask for at most {MOST_ALTERNATIVES}")
    return asked or 0


def answers_asked(body: Mapping[str, Any], name: str, most: int) -> int:
    """How many answers a request asks for."""
    asked = count(body, name) or 1
    if asked > most:
        raise invalid(name, f"{asked} are too many", remedy=f"ask for at most {most}, or ask again")
    return asked


def answer_begun(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """The messages without the last one, and its text: it is the beginning of the answer."""
    *before, last = messages
    unfit = {
        "there is nothing to answer before it": not before,
        "it is no assistant's": last["role"] != "assistant",
        "it calls tools": bool(last.get("tool_calls")),
        "it has thoughts": bool(last.get("reasoning")),
        "it has content that is no text": bool(last.get("omitted")),
    }
    for why, is_so in unfit.items():
        if is_so:
            raise invalid(
                f"messages[{len(before)}]",
                f"the last message is to begin the answer, but {why}",
                remedy="end with an assistant's text, or with a message that is to be answered",
            )
    return tuple(before), last["content"]


def arguments_object(written: str) -> Any:
    """The arguments of a call for APIs that want an object."""
    if not written.strip():
        return {}
    try:
        return orjson.loads(written)
    except orjson.JSONDecodeError:
        value = value_of(written)
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return {"arguments": written}
    return value if isinstance(value, dict) else {"arguments": written}


def error_text(error: RefusedError) -> str:
    """What is wrong and what to do, in one text, because clients show nothing else."""
    return f"{error.message}. {error.remedy[:1].upper()}{error.remedy[1:]}." if error.remedy else error.message


class ToolNames:
    """The names of called tools by the ids of their calls. Results refer to ids, but the model reads names."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, call_id: str, name: str) -> None:
        self._names[call_id] = name

    def of(self, call_id: str) -> str:
        return self._names.get(call_id, "")
