"""Google's form of schemas, and what of it JSON Schema has no words for."""

from __future__ import annotations

from typing import Any

from loopwright.types import Tool

COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})


def json_schema(schema: Any) -> Any:
    """The schema with its types in small letters. It must not be nested deeply."""
    match schema:
        case dict():
            return {
                name: value.lower() if name == "type" and isinstance(value, str) else json_schema(value)
                for name, value in schema.items()
            }
        case list():
            return [json_schema(one) for one in schema]
    return schema


def plain_tool(tool: Tool) -> Tool:
    return {**tool, "parameters": plain_schema(tool["parameters"])}


def plain_schema(schema: Any) -> Any:
    """A schema without the words that only Google has. Grammars know those of JSON Schema."""
    match schema:
        case dict():
            left = {name: value for name, value in schema.items() if not _is_googles(name, value)}
            plain = {
                name: int(value) if _is_count(name, value) else plain_schema(value) for name, value in left.items()
            }
            return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain
        case list():
            return [plain_schema(one) for one in schema]
    return schema


def _is_googles(name: str, value: Any) -> bool:
    """Whether it is no property of this name: the schema of a property is an object."""
    is_word = name in ("nullable", "propertyOrdering", "example") or (name, value) == ("format", "enum")
    return is_word and not isinstance(value, dict)


def _is_count(name: str, value: Any) -> bool:
    """Whether it is a limit that Google's clients write as text."""
    return name in COUNTS and isinstance(value, str) and value.isdecimal() and len(value) < 10
