"""Reads what clients send. Malformed input is a 400 that names its place, never a crash.

Nulls are ignored, and unknown fields are listed with the wishes. A field that is needed and cannot be understood is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import orjson

from loopwright.gateway.refusals import invalid
from loopwright.render.call_json import without_lone_surrogates

LONGEST_TOKEN_COUNT = 1 << 31
IGNORED = "ignored"
"""The wish that lists what has no effect here."""
LONGEST_NAME = 80
MOST_NAMES = 20
"""How many such names are listed of one request."""
ROOM = 16
"""How many levels are kept free around a value that is recorded: rows and answers nest it deeper."""


def read_json(body: bytes) -> Mapping[str, Any]:
    """The body as a JSON object. Lone surrogates, which JavaScript can send, become replacement characters."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        value = _read_odd_json(body, error)
    if not isinstance(value, dict):
        raise invalid("body", "it is no JSON object", remedy="send an object, as the API's reference shows")
    return value


def _read_odd_json(body: bytes, why: orjson.JSONDecodeError) -> Any:
    if rb"\ud" not in body.lower():
        raise _malformed(why)
    try:
        return orjson.loads(without_lone_surrogates(json.dumps(json.loads(body), ensure_ascii=False, allow_nan=False)))
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error


def _malformed(error: Exception) -> Exception:
    return invalid("body", f"it is no valid JSON ({error})", remedy="send one JSON object, encoded in UTF-8")


def objects(value: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each object of a list, with its place. Nulls are skipped, and so is a list that is null."""
    if value is None:
        return
    if not isinstance(value, list):
        raise invalid(where, f"expected a list, got {kind_of(value)}", remedy="send a list of objects")
    for number, item in enumerate(value):
        if item is None:
            continue
        if not isinstance(item, dict):
            raise invalid(f"{where}[{number}]", f"expected an object, got {kind_of(item)}", remedy="send an object")
        yield f"{where}[{number}]", item


def json_text(value: Any, where: str) -> str:
    """A value as JSON. A value that is nested too deeply to be written is refused."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise invalid(where, f"it cannot be written as JSON ({error})", remedy="nest it less") from error


def check_recordable(value: Any, where: str) -> None:
    """Refuses a value that could not be written as JSON inside of others, as records and answers have it."""
    for _ in range(ROOM):
        value = [value]
    json_text(value, where)


def chosen(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields of the body with these names, if they are there."""
    found = {name: body[name] for name in names if body.get(name) is not None}
    if found:
        check_recordable(found, ", ".join(found))
    return found


def ignored(body: Mapping[str, Any], known: Collection[str], inside: str = "") -> dict[str, Any]:
    """The names of fields that have no effect here and no name of their own among the wishes, to be listed with them.
    `inside` is the field that has them."""
    names = sorted(
        f"{inside}{name}"[:LONGEST_NAME] for name, value in body.items() if value is not None and name not in known
    )
    return {IGNORED: names[:MOST_NAMES]} if names else {}


def text(value: Any, where: str) -> str:
    """A string; null is empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid(where, f"expected a string, got {kind_of(value)}", remedy="send a string")
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise invalid(name, f"expected true or false, got {kind_of(value)}", remedy="send true or false")


def count(body: Mapping[str, Any], name: str, *, least: int = 1, most: int = LONGEST_TOKEN_COUNT) -> int | None:
    """A whole number of at least `least`. A number above `most` counts as `most`."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise invalid(name, f"expected a whole number from {least} on, got {value!r:.40}", remedy="correct or omit it")
    return min(value, most)


def number(body: Mapping[str, Any], name: str, *, least: float, most: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise invalid(name, f"expected a number from {least} to {most}, got {value!r:.40}", remedy="correct or omit it")
    return float(value)


def strings(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """One string or a list of them, without the empty ones."""
    value = body.get(name)
    if value is None:
        return ()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(item is None or isinstance(item, str) for item in listed):
        raise invalid(name, f"expected one or more strings, got {kind_of(value)}", remedy="correct or omit it")
    return tuple(dict.fromkeys(item for item in listed if item))


def model_name(body: Mapping[str, Any]) -> str:
    """The model's name. Any name is accepted, because there is one model."""
    return text(body.get("model"), "model")


def kind_of(value: Any) -> str:
    """The JSON type of a value."""
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
