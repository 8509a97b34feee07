"""Describes a Python function to a model: its name, the first paragraph of its docstring, and a JSON schema of its
parameters, made from their annotations."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from loopwright.errors import ConfigError
from loopwright.types import Tool

GIVEN = ("task", "state")
"""Parameters that the model does not fill in: the task, and the state that the calls of this rollout share."""

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


def tool_of(function: Callable[..., Any], path: str) -> Tool:
    """The tool of a function. Raises a ConfigError that says why a function cannot be a tool."""
    try:
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(
            f"tool {path!r} has no signature that can be read: {error}", remedy="name a function with plain annotations"
        ) from error
    shown = {name: parameter for name, parameter in parameters.items() if name not in GIVEN}
    for parameter in shown.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"tool {path!r} has the parameter {parameter}, which a model cannot fill in by name",
                remedy="give the function named parameters only",
            )
    properties = {name: _schema(hints.get(name, Any)) for name in shown}
    required = [name for name, parameter in shown.items() if parameter.default is parameter.empty]
    about = (inspect.getdoc(function) or "").split("\n\n")[0]
    name = str(getattr(function, "__name__", path.rpartition(":")[2]))
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": " ".join(about.split()), "parameters": schema}


def given_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of GIVEN that the function has."""
    return tuple(name for name in GIVEN if name in inspect.signature(function).parameters)


def _schema(annotation: Any) -> dict[str, Any]:
    """The schema of one annotation. A type that JSON does not have may be anything."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = [word for word in args[1:] if isinstance(word, str)]
        return {**_schema(args[0]), **({"description": words[0]} if words else {})}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        some = [_schema(arg) for arg in args if arg is not types.NoneType]
        return some[0] if len(some) == 1 else {"anyOf": some}
    if origin in (list, tuple, set, Sequence):
        items = [arg for arg in args if arg is not Ellipsis]
        return {"type": "array", **({"items": _schema(items[0])} if items else {})}
    if origin in (dict, Mapping):
        return {"type": "object"}
    return {"type": PLAIN[annotation]} if annotation in PLAIN else {}
