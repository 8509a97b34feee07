"""How many rollouts to have in flight, by what the engines can hold."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.types import EngineCapacity

USUAL_SEQUENCES = 64
"""What an engine is assumed to compute at once if it does not say."""


def rollouts_in_flight(engines: Sequence[EngineCapacity], tokens_per_rollout: int) -> int:
    """How many rollouts of so many tokens the engines can hold together. More would only wait inside the engines, and
    push each other out of their caches. Each engine gets at least one."""
    return sum(_held_by(engine, tokens_per_rollout) for engine in engines)


def _held_by(engine: EngineCapacity, tokens_per_rollout: int) -> int:
    by_memory = None if engine.kv_tokens is None else engine.kv_tokens // tokens_per_rollout
    known = [limit for limit in (by_memory, engine.sequences) if limit is not None]
    return max(1, min(known, default=USUAL_SEQUENCES))
