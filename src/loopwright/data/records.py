"""Makes a Task from a plain JSON record. A record that is not clearly a task is refused.

Tasks are stored with their rollouts, so values that JSON cannot hold are refused here, before anything is sampled. A
task that is accepted is the same in a resumed run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

from loopwright.data.plain import plain
from loopwright.errors import DataError
from loopwright.types import Message, Task

PROMPT_KEYS = ("messages", "prompt", "instruction")
TRUTH_KEYS = ("truth", "answer", "ground_truth")
KNOWN_KEYS = {"id", "tools", "metadata", *PROMPT_KEYS, *TRUTH_KEYS}

_UNESCAPED = json.JSONEncoder(ensure_ascii=False)

Refuse = Callable[[str, str], NoReturn]
"""Raises a DataError from (what is wrong, what to do)."""


def task_from(record: object, *, default_id: str, where: str, **facts: Any) -> Task:
    """Build a task. Unknown keys go into its metadata. Every error message starts with `where`.

    An error with the fact `field` is about a value that is kept under its own name, so choosing another column does not
    help.
    """

    def refuse(problem: str, remedy: str, **more: Any) -> NoReturn:
        raise DataError(f"{where}: {problem}", remedy=remedy, **facts, **more)

    if not isinstance(record, Mapping):
        refuse(f"a task must be an object, got {_kind(record)}", 'write {"prompt": "...", "truth": ...}')
    truth_key = _only(record, TRUTH_KEYS, refuse)
    task = Task(
        id=_id(record.get("id", default_id), refuse),
        messages=_messages(record, refuse),
        truth=record[truth_key] if truth_key else None,
        tools=tuple(_objects(record.get("tools", []), "tools", partial(refuse, field="tools"))),
        metadata=_metadata(record, partial(refuse, field="metadata")),
    )
    for part in ("id", "messages", "tools"):
        _require_whole_characters(part, getattr(task, part), refuse)
    return task


def task_of(item: object, *, default_id: str, where: str, **facts: Any) -> Task:
    """A task that JSON holds unchanged, made from a Task or a record that the user's code or a table returned."""
    record = {field.name: getattr(item, field.name) for field in fields(Task)} if isinstance(item, Task) else item
    if isinstance(record, Mapping):
        record = {
            name: value for field, held in record.items() for name, value in _plain(where, field, held, facts).items()
        }
    return task_from(record, default_id=default_id, where=where, **facts)


def _plain(where: str, field: object, value: object, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = plain({field: value})
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: {field} cannot be stored as JSON: {error}",
            remedy="use strings, finite numbers, booleans, None, lists, and dicts whose keys are text",
            **{**facts, "field": field},
        ) from error
    return kept


def _only(record: Mapping[str, Any], keys: tuple[str, ...], refuse: Refuse) -> str | None:
    given = [key for key in keys if key in record]
    if len(given) > 1:
        refuse(f"{' and '.join(given)} mean the same thing", f"keep one of them; {given[0]} is enough")
    return given[0] if given else None


def _id(value: object, refuse: Refuse) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        refuse(f"id must be text or a whole number, got {_kind(value)}", 'write an id like "task-17", or leave it out')
    return str(value)


def _messages(record: Mapping[str, Any], refuse: Refuse) -> tuple[Message, ...]:
    key = _only(record, PROMPT_KEYS, refuse)
    if key is None:
        refuse("there is neither messages nor prompt", "give the task a prompt (text) or messages (a list)")
    value = record[key]
    if isinstance(value, str) and value and key != "messages":
        return ({"role": "user", "content": value},)
    if not isinstance(value, list | tuple) and key != "messages":
        refuse(f"{key} must be text or messages, got {_kind(value)}", f'write "{key}": "What is 2+2?"')
    messages = _objects(value, key, refuse)
    if not messages:
        refuse(f"{key} is empty", "give at least one message")
    for message in messages:
        _check_message(message, refuse)
    return tuple(messages)


def _check_message(message: Message, refuse: Refuse) -> None:
    """Check only that there are a role and content: which roles and kinds of content are valid depends on the chat
    template."""
    content, calls = message.get("content"), message.get("tool_calls")
    if not isinstance(message.get("role"), str):
        refuse("a message has no role", 'write {"role": "user", "content": "..."}')
    if not isinstance(content, str | list) and not calls:
        refuse("a message has no content", 'write {"role": "user", "content": "..."}')
    if calls is not None:
        _objects(calls, "tool_calls", refuse)
    if content is not None and not isinstance(content, str):
        _objects(content, "content", refuse)


def _objects(value: object, name: str, refuse: Refuse) -> list[dict[str, Any]]:
    def wrong(got: str) -> NoReturn:
        refuse(f"{name} must be a list of objects, got {got}", f"write {name} as [{{...}}, ...]")

    if not isinstance(value, list | tuple):
        wrong(_kind(value))
    for item in value:
        if not isinstance(item, Mapping):
            wrong(f"a list with {_kind(item)} in it")
    return [dict(item) for item in value]


def _require_whole_characters(part: str, value: object, refuse: Refuse) -> None:
    """Refuse half a character (a lone surrogate): JSON can hold it, but a tokenizer cannot read it."""
    try:
        _UNESCAPED.encode(value).encode("utf-8")
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        refuse(f"{part} has {half} in it, which is half of a character", "replace it in the text")


def _metadata(record: Mapping[str, Any], refuse: Refuse) -> dict[str, Any]:
    metadata = record.get("metadata", {})
    if not isinstance(metadata, Mapping):
        refuse(f"metadata must be an object, got {_kind(metadata)}", 'write "metadata": {...}')
    others = {key: value for key, value in record.items() if key not in KNOWN_KEYS}
    if both := sorted(set(others) & set(metadata)):
        refuse(f"{both[0]!r} is given twice, in metadata and beside it", "keep one of them")
    return {**others, **metadata}


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text" if value else "empty text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, Mapping) else type(value).__name__
