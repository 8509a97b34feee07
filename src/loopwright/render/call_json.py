"""Reads the JSON of one tool call. The arguments stay as the model wrote them: spaces, order, escapes."""

from __future__ import annotations

import json
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NoReturn

from loopwright.types import ToolCall

BLANK = " \t\r\n"


class OpenTextError(ValueError):
    """The JSON ends inside a string."""


def read_call(body: str) -> ToolCall:
    """The call in `body`, with its arguments as they are written there. Raises ValueError if it is no call."""
    try:
        found = _members(body.strip(BLANK))
        name, _ = found.get("name", (None, ""))
        # Some models were trained to write "parameters" instead of "arguments".
        arguments, spelled = found.get("arguments") or found.get("parameters") or ({}, "{}")
        if isinstance(arguments, str):
            arguments, spelled = json.loads(arguments, parse_constant=_no_json), arguments
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise OpenTextError(error.msg) from error
        raise
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("not a name and an object of arguments")
    # A lone surrogate is legal in JSON, but it cannot be sent or stored as text. This raises for it.
    (name + spelled).encode()
    return ToolCall(name, spelled)


def without_lone_surrogates(text: str) -> str:
    """The text with a replacement mark for each half of a surrogate pair. JSON and JavaScript have such halves; UTF-8
    does not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _members(body: str) -> dict[str, tuple[object, str]]:
    """The members of a JSON object: each value, and the text as it was written."""
    decoder = json.JSONDecoder(parse_constant=_no_json)
    members: dict[str, tuple[object, str]] = {}
    place = _expect(body, 0, "{")
    while body[place : place + 1] != "}" or members:
        key, place = scanstring(body, _expect(body, place, '"'), True)
        begin = _expect(body, place, ":")
        value, end = decoder.raw_decode(body, begin)
        members[key] = (value, body[begin:end])
        place = _skip(body, end)
        if body[place : place + 1] == "}":
            break
        place = _expect(body, place, ",")
    if place + 1 != len(body):
        raise json.JSONDecodeError("Extra data", body, place)
    return members


def _expect(body: str, place: int, sign: str) -> int:
    """The position after `sign`, which must be at `place`. The opening quote of a string is not skipped."""
    place = _skip(body, place)
    if body[place : place + 1] != sign:
        raise json.JSONDecodeError(f"Expecting {sign!r}", body, place)
    return place + 1 if sign == '"' else _skip(body, place + 1)


def _skip(body: str, place: int) -> int:
    while place < len(body) and body[place] in BLANK:
        place += 1
    return place


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
