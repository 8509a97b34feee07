"""How much an engine can hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """`kv_tokens`: for how many tokens there is memory for keys and values. `sequences`: how many answers are computed
    at once. None means that it is not limited, or that nobody knows."""

    kv_tokens: int | None = None
    sequences: int | None = None


UNKNOWN_CAPACITY = EngineCapacity()
