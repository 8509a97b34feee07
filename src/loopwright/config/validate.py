"""Makes a RunConfig of plain values, or readable problems. Pydantic finds the problems; the words are ours."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loopwright.config.base import RefusedSettingError
from loopwright.config.fields import locate
from loopwright.config.problems import KeyPath, Problem, nearest, suggest
from loopwright.config.schema import RunConfig

EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a section with fields",
    "model_attributes_type": "a section with fields",
    "finite_number": "a finite number",
    "string_too_short": "text that is not empty",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "too_long": "a list of at most {max_length}",
}
REQUIRED_SECTIONS: dict[KeyPath, str] = {
    ("task_sets",): "add data and agent, or a list of task_sets",
    ("model",): "add model with a path, for example `path: smollm2`",
    ("trainer",): "add trainer with run_dir and steps",
}


def validate(values: Mapping[str, Any]) -> RunConfig | list[Problem]:
    """Build the config, or return all its problems."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        return _problems(error.errors(include_url=False))


def without(values: Mapping[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    """A copy in which wrong fields have their defaults, to find further problems."""
    rest: dict[str, Any] = copy.deepcopy(dict(values))
    for path in paths:
        holder, field = rest, path[0]
        here: Any = rest
        for key in path:
            if isinstance(here, dict):
                holder, field = here, key
                here = here.get(str(key))
            elif isinstance(here, list) and int(key) < len(here):
                here = here[int(key)]
        holder.pop(str(field), None)
    return rest


def _problems(errors: Sequence[ErrorDetails]) -> list[Problem]:
    """One problem per place: a union of plain types reports each of its members."""
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(locate(error["loc"]).path, []).append(error)
    return [_problem(path, alike) for path, alike in by_path.items()]


def _problem(path: KeyPath, errors: Sequence[ErrorDetails]) -> Problem:
    error = errors[0]
    match error["type"]:
        case "missing" if isinstance(path[-1], int):
            return Problem(path[:-1], "has too few items", "add what is missing")
        case "missing":
            return Problem(path, "missing", REQUIRED_SECTIONS.get(path, f"add {path[-1]}"))
        case "extra_forbidden":
            return Problem(path, "unknown setting", suggest(path[-1], locate(error["loc"]).names, "known here"))
        case "union_tag_not_found":
            return Problem((*path, "kind"), "missing", f"add kind: {' or '.join(locate(error['loc']).kinds)}")
        case "union_tag_invalid":
            tag, known = error["ctx"]["tag"], _unquoted(error["ctx"]["expected_tags"])
            return Problem((*path, "kind"), f"unknown kind {tag!r}", suggest(tag, known, "known kinds"))
        case "value_error" if isinstance(refused := error["ctx"]["error"], RefusedSettingError):
            return Problem(path, f"is {_shown(error['input'])}: {refused}", refused.remedy)
    expected = " or ".join(_expected(each) for each in errors)
    return Problem(path, f"is {_shown(error['input'])}, must be {expected}", _remedy(error, expected))


def _expected(error: ErrorDetails) -> str:
    template = EXPECTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else error["msg"]


def _remedy(error: ErrorDetails, expected: str) -> str:
    if error["type"] in ("literal_error", "enum"):
        close = nearest(error["input"], _unquoted(error["ctx"]["expected"].replace(" or ", ", ")))
        if close:
            return f"did you mean {close!r}?"
    value = error["input"]
    if isinstance(value, str) and error["type"] in ("int_type", "float_type", "bool_type"):
        return f"make it {expected}, without quotes"
    return f"make it {expected}"


def _unquoted(names: str) -> list[str]:
    return [name.strip().strip("'") for name in names.split(",")]


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
