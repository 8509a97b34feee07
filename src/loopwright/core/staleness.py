"""How old a token may be when it is trained. Version v is the weights after train step v."""

from __future__ import annotations


def staleness(version: int, step: int) -> int:
    """Train steps between the weights that sampled a token and the step that trains on it; 0 is on-policy."""
    return step - version - 1


def horizon(max_staleness: int, sync_interval: int = 1) -> int:
    """Version v may feed train steps v+1 .. v+horizon."""
    return (max_staleness + 1) * sync_interval


def trainable_at(version: int, step: int, max_staleness: int, sync_interval: int = 1) -> bool:
    """Whether a token of `version` may be trained at `step`."""
    return 0 <= staleness(version, step) < horizon(max_staleness, sync_interval)
