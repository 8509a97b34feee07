"""Turns contents into the text that the model reads.

The text of a part is read. A part that is no text (a picture, a sound, a file) is refused in a task, because the model
would answer something else. After the model's first answer, for example in the result of a tool, a placeholder replaces
it and is counted: the agent has seen it, and its rollout continues. Nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from loopwright.gateway.documents import document_text
from loopwright.gateway.reading import json_text, kind_of, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Message

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
MEDIA = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "input_audio": "audio",
    "audio": "audio",
    "document": "document",
    "file": "file",
    "input_file": "file",
    "video": "video",
}
"""The kind under which parts of each type are counted."""
DOCUMENTS = frozenset({"document", "file"})
"""The kinds of parts that may hold a text."""
OTHER = "other"
"""The kind of parts with an unknown type."""
OPAQUE = frozenset({"encrypted_content", "encrypted_stdout", "signature", "fingerprint", "cache_control"})
"""Fields of results that mean nothing to a model."""
MEDIA_TYPE = re.compile(r"[\w.+-]+/?[\w.+-]*")
LONGEST_NAME = 60


class PartReader:
    """Reads one message's content. `is_task`: the model has not answered yet. `omitted` are the kinds of the parts that
    were replaced by placeholders."""

    __slots__ = ("_is_task", "omitted")

    def __init__(self, *, is_task: bool = False) -> None:
        self._is_task = is_task
        self.omitted: list[str] = []

    def message(self, message: dict[str, Any]) -> Message:
        """The message, with what was omitted in it."""
        if self.omitted:
            message["omitted"] = tuple(self.omitted)
        return message

    def text(self, content: Any, where: str, between: str = "\n") -> str:
        """A content as text: a string, or a list of parts, whose texts are joined."""
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise invalid(where, f"expected text or a list of parts, got {kind_of(content)}", remedy="send a string")
        try:
            return between.join(self._texts(content, where))
        except RecursionError as error:
            raise _too_deep(where) from error

    def part(self, part: Mapping[str, Any], where: str) -> Iterator[str]:
        """The text of one part, or its placeholder."""
        kind = part.get("type", "text")
        if not isinstance(kind, str):
            yield self._placeholder(OTHER, "part", "")
        elif kind in TEXT_PARTS:
            yield text(part.get("refusal" if kind == "refusal" else "text"), f"{where}.text")
        elif kind in MEDIA:
            yield self._media(part, kind, where)
        elif kind == "search_result":
            said = (part.get("title"), part.get("source"), self.text(part.get("content"), f"{where}.content"))
            yield "\n".join(line for line in said if line and isinstance(line, str))
        elif kind == "tool_reference":
            yield text(part.get("tool_name"), f"{where}.tool_name")
        elif kind == "browser_state":
            yield self.result({name: value for name, value in part.items() if name != "type"}, where)
        elif isinstance(part.get("text"), str):
            yield part["text"]
        elif isinstance(part.get("content"), str | list):
            yield self.text(part["content"], f"{where}.content")
        else:
            yield self._placeholder(OTHER, _name(kind) or "part", "")

    def item(self, kind: str) -> str:
        """The placeholder of something larger than a part."""
        return self._placeholder(OTHER, _name(kind) or "item", "")

    def result(self, value: Any, where: str) -> str:
        """The result of a tool in any form: its text, or JSON without opaque fields."""
        try:
            plain = self._plain(value, where)
        except RecursionError as error:
            raise _too_deep(where) from error
        if isinstance(plain, list) and all(isinstance(one, str) for one in plain):
            return "\n".join(plain)
        return plain if isinstance(plain, str) else json_text(plain, where)

    def _plain(self, value: Any, where: str) -> Any:
        match value:
            case {"type": str() as kind} if kind in TEXT_PARTS or kind in MEDIA or kind == "tool_reference":
                return "\n".join(self.part(value, where))
            case dict():
                kept = {name: one for name, one in value.items() if name not in OPAQUE and one is not None}
                return {name: self._plain(one, where) for name, one in kept.items()}
            case list():
                return [self._plain(one, where) for one in value]
        return value

    def _texts(self, parts: list[Any], where: str) -> Iterator[str]:
        for number, part in enumerate(parts):
            if isinstance(part, str):
                yield part
            elif isinstance(part, dict):
                yield from self.part(part, f"{where}[{number}]")
            elif part is not None:
                raise invalid(
                    f"{where}[{number}]", f"expected a part, got {kind_of(part)}", remedy='send {"type": "text"}'
                )

    def _media(self, part: Mapping[str, Any], kind: str, where: str) -> str:
        source = part.get("source")
        if kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
            field = "data" if source["type"] == "text" else "content"
            said = (part.get("title"), part.get("context"), self.text(source.get(field), f"{where}.source.{field}"))
            return "\n".join(line for line in said if line and isinstance(line, str))
        if MEDIA[kind] in DOCUMENTS and (written := document_text(part)) is not None:
            return written
        if self._is_task:
            raise invalid(where, f"a part of type {kind!r} cannot be shown to this model", remedy="send text only")
        return self._placeholder(MEDIA[kind], MEDIA[kind], _media_type(part))

    def _placeholder(self, kind: str, name: str, more: str) -> str:
        self.omitted.append(kind)
        return f"[{name} omitted: {more}]" if more else f"[{name} omitted]"


def content_text(content: Any, where: str) -> str:
    """A content in which nothing may be omitted, for example of a system message."""
    return PartReader(is_task=True).text(content, where)


def _too_deep(where: str) -> Exception:
    return invalid(where[:LONGEST_NAME], "it is nested too deeply", remedy="nest it less")


def _media_type(part: Mapping[str, Any]) -> str:
    """The media type of a picture, sound or file, if the part names it."""
    for value in (part.get(name) for name in ("source", "image_url", "input_audio", "file", "filename")):
        inner = value if isinstance(value, dict) else {"url": value, "filename": value}
        for said in (inner.get(name) for name in ("media_type", "url", "format", "filename")):
            found = _name(said.removeprefix("data:").partition(";")[0]) if isinstance(said, str) else ""
            if found:
                return found
    return ""


def _name(said: str) -> str:
    """A client's text, if it is short and simple enough to be shown to the model."""
    return said if len(said) <= LONGEST_NAME and MEDIA_TYPE.fullmatch(said) else ""
