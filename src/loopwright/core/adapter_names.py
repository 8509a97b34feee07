"""How the two matrices of an adapter are named after the weight that they belong to."""

from __future__ import annotations

from collections.abc import Iterable

A, B, WEIGHT = ".lora_A.weight", ".lora_B.weight", ".weight"


def are_adapters(names: Iterable[str]) -> bool:
    """Whether the tensors of an update are adapters."""
    return any(name.endswith(A) for name in names)
