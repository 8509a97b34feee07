"""Closes the objects of a JSON schema: a model writes the properties that are listed, and invents none.

By the standard, an object may have any other property unless its schema says no. Whoever lists properties means these,
and a model that strays would invent others until its budget is spent. What fits the closed schema fits the open one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PARTS = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
"""What joins a schema with others: an object must fit all of them."""
OWN = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "required", "minProperties"}
)
"""What a schema says itself of an object's properties."""
SAYS_MORE = PARTS | (OWN - {"properties", "required"})
"""With one of these, an object's listed properties may not be all."""
SCHEMAS = frozenset({"items", "contains", "not", "additionalProperties"})
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with its objects closed. Parts that are joined must stay open, and any definition may be one of them;
    so a schema that joins parts somewhere is left as it is."""
    return schema if any(map(_joins, _schemas(schema))) else _closed(schema)


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = dict[str, Any]()
    for key, value in schema.items():
        # No comprehension: it would use up Python's stack for deep schemas.
        inner[key] = _inner(key, value)
    if "properties" in schema and not SAYS_MORE & schema.keys() and _lists_required(schema):
        inner["additionalProperties"] = False
    return inner


def _lists_required(schema: Mapping[str, Any]) -> bool:
    """Whether the properties that an object must have are all listed."""
    required, listed = schema.get("required"), schema["properties"]
    if not isinstance(required, list) or not isinstance(listed, dict):
        return not required
    return all(isinstance(name, str) and name in listed for name in required)


def _inner(key: str, value: Any) -> Any:
    if key in SCHEMAS and isinstance(value, dict):
        return _closed(value)
    if key in LISTS and isinstance(value, list):
        return [_closed(one) if isinstance(one, dict) else one for one in value]
    if key in NAMED and isinstance(value, dict):
        return {name: _closed(one) if isinstance(one, dict) else one for name, one in value.items()}
    return value


def _schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema and all inside of it. A property may have the name of a keyword, and is none."""
    left: list[Any] = [schema]
    while left:
        if not isinstance(one := left.pop(), dict):
            continue
        yield one
        for key, value in one.items():
            if key in SCHEMAS:
                left.append(value)
            elif key in LISTS and isinstance(value, list):
                left += value
            elif key in NAMED and isinstance(value, dict):
                left += value.values()


def _joins(schema: Mapping[str, Any]) -> bool:
    """Whether an object must fit several parts at once."""
    parts = schema.get("allOf")
    several = (isinstance(parts, list) and len(parts) > 1) or "if" in schema
    joined = PARTS & schema.keys()
    return several or len(joined) > 1 or bool(joined and OWN & schema.keys())
