"""Closes the objects of a JSON schema: a model writes the properties that are listed, and invents none.

By the standard, an object may have any other property unless its schema says no. Whoever lists properties means these,
and a model that strays would invent others until its budget is spent. What fits the closed schema fits the open one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAYS_MORE = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "allOf", "$ref", "if"}
)
"""With one of these, an object's listed properties may not be all."""
SCHEMAS = frozenset({"items", "contains", "not", "additionalProperties"})
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its objects closed. Parts that are joined (`allOf`) must stay open, and any definition may be one
    of them; so a schema that joins several parts is left as it is."""
    return schema if _joins(schema) else _closed(schema)


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = {key: _inner(key, value) for key, value in schema.items()}
    if "properties" in schema and not SAYS_MORE & schema.keys():
        inner["additionalProperties"] = False
    return inner


def _inner(key: str, value: Any) -> Any:
    if key in SCHEMAS and isinstance(value, dict):
        return _closed(value)
    if key in LISTS and isinstance(value, list):
        return [_closed(one) if isinstance(one, dict) else one for one in value]
    if key in NAMED and isinstance(value, dict):
        return {name: _closed(one) if isinstance(one, dict) else one for name, one in value.items()}
    return value


def _joins(value: Any) -> bool:
    """Whether there is an `allOf` of several parts anywhere."""
    if isinstance(value, dict):
        parts = value.get("allOf")
        return (isinstance(parts, list) and len(parts) > 1) or any(_joins(one) for one in value.values())
    return isinstance(value, list) and any(_joins(one) for one in value)
