"""Converts values to what JSON would give back, so that a task is the same before and after it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: object) -> Any:
    """The value as it will be read back: a tuple becomes a list, a numpy scalar becomes a number.

    Raises TypeError, ValueError or RecursionError for values that JSON cannot hold, and for keys that are not text,
    because JSON would change them.
    """
    _require_text_keys(value)
    return json.loads(json.dumps(value, allow_nan=False, default=_unpacked))


def _require_text_keys(value: object) -> None:
    if isinstance(value, Mapping):
        for key, held in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            _require_text_keys(held)
    elif isinstance(value, list | tuple):
        for held in value:
            _require_text_keys(held)


def _unpacked(value: object) -> object:
    """Called by json for a type that it does not know."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r:.60} is of type {type(value).__name__}")
