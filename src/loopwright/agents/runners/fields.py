"""Fills fields such as `{task.prompt}` into a program's arguments, environment and folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.config.programs import FIELD, FIELDS
from loopwright.errors import SetupError
from loopwright.render.call_json import without_lone_surrogates
from loopwright.types import Task


def filled(text: str, task: Task, values: Mapping[str, str]) -> str:
    """The text with its fields filled in. A task that lacks a field is a SetupError."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in values:
            return values[name]
        if name.split(".")[0] != "task":
            return match[0]
        return _of_task(task, name)

    return FIELD.sub(value, text)


def instruction_of(task: Task) -> str:
    """The task as one text, for programs that take an instruction."""
    texts = [(str(message.get("role", "")), _text(message.get("content"))) for message in task.messages]
    if len(texts) == 1:
        return without_lone_surrogates(texts[0][1])
    parts = [text if role in ("user", "system") else f"{role}: {text}" for role, text in texts]
    return without_lone_surrogates("\n\n".join(parts))


def _of_task(task: Task, name: str) -> str:
    match name.split(".")[1:]:
        case ["id"]:
            return task.id
        case ["prompt"]:
            return instruction_of(task)
        case ["truth"]:
            return _plain(task.truth)
        case ["metadata", *way]:
            value: Any = task.metadata
            for key in way:
                if not isinstance(value, Mapping) or key not in value:
                    break
                value = value[key]
            else:
                return _plain(value)
    raise SetupError(
        f"task {task.id!r} has no {name}", remedy=f"give every task such a field, or use one of {', '.join(FIELDS)}"
    )


def _text(content: object) -> str:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
