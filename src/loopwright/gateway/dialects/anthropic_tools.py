"""The tools of a request to Anthropic's API: an agent's own, and those that Anthropic defines but the agent runs.

The latter come only as a type and a name, because Anthropic's models know their parameters. Our model gets a
description. Tools that a server would run (searching, fetching, running code) are left out: there is no such server
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.gateway.dialects.dialect import tool
from loopwright.gateway.freeform import not_granted
from loopwright.gateway.reading import objects, text
from loopwright.types import Tool

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
LINES = {"type": "array", "items": NUMBER, "description": "first and last line"}
FILE = {"path": TEXT, "view_range": LINES, "file_text": TEXT, "old_str": TEXT, "new_str": TEXT, "insert_line": NUMBER}


@dataclass(frozen=True, slots=True)
class TypedTool:
    """`begin` is the beginning of its type; a date or another suffix follows."""

    begin: str | tuple[str, ...]
    about: str
    takes: Mapping[str, Any]
    required: tuple[str, ...] = ()

    def is_meant_by(self, kind: object) -> bool:
        return isinstance(kind, str) and kind.startswith(self.begin)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": self.takes, "required": list(self.required)}


def _commands(*names: str) -> Mapping[str, Any]:
    return {"command": {"type": "string", "enum": list(names)}}


BASH = TypedTool(
    "bash_",
    "Run a command in a shell that keeps its state.",
    {"command": TEXT, "restart": {"type": "boolean", "description": "begin with a new shell"}},
)


def _editor(begin: str | tuple[str, ...], inserted: str) -> TypedTool:
    return TypedTool(
        begin,
        "View and edit text files. `view` shows a file or a folder, `create` writes `file_text`, `str_replace` puts "
        f"`new_str` in place of `old_str`, which must occur once, `insert` puts `{inserted}` after line `insert_line`.",
        {**_commands("view", "create", "str_replace", "insert"), **FILE, inserted: TEXT},
        required=("command", "path"),
    )


# For the editor of 20250728 Claude writes `insert_text` (anthropic-sdk-python#1155), so agents expect it there.
OLD_EDITOR = _editor(("text_editor_2024", "text_editor_20250124", "text_editor_20250429"), "new_str")
EDITOR = _editor("text_editor_", "insert_text")
MEMORY = TypedTool(
    "memory_",
    "Keep notes in files below /memories. `view`, `create`, `str_replace`, `insert` (of `insert_text`) and `delete` "
    "take a `path`, `rename` takes `old_path` and `new_path`.",
    {
        **_commands("view", "create", "str_replace", "insert", "delete", "rename"),
        **FILE,
        "insert_text": TEXT,
        "old_path": TEXT,
        "new_path": TEXT,
    },
    required=("command",),
)


def read_tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for where, item in objects(body.get("tools"), "tools"):
        name, typed = text(item.get("name"), f"{where}.name"), _typed(item)
        if not _is_offered(item):
            continue
        if typed is not None:
            yield tool(name, typed.about, typed.schema)
        else:
            yield tool(name, text(item.get("description"), f"{where}.description"), item.get("input_schema"))


def tools_not_granted(body: Mapping[str, Any]) -> dict[str, Any]:
    return not_granted((item, {}, _is_offered(item)) for _, item in objects(body.get("tools"), "tools"))


def _typed(item: Mapping[str, Any]) -> TypedTool | None:
    return next((one for one in (BASH, OLD_EDITOR, EDITOR, MEMORY) if one.is_meant_by(item.get("type"))), None)


def _is_offered(item: Mapping[str, Any]) -> bool:
    return bool(item.get("name")) and ((item.get("type") or "custom") == "custom" or _typed(item) is not None)
