"""Rotary embeddings in few calls: angles are looked up instead of computed, and all that layers share is made once."""

from __future__ import annotations

from typing import Any

import torch

BY_POSITION = ("default", "linear", "llama3", "yarn")
"""Kinds in which the angles of a token depend on its position alone, not on how long the longest sequence is."""

FIRST_TABLE = 1024
"""Positions in the first table; it doubles by need."""


class Angles:
    """The angles of a model's own rotary embedding."""

    def __init__(self, rotary: Any, like: torch.Tensor) -> None:
        self._rotary = rotary
        self._like = like
        tabled = getattr(rotary, "rope_type", None) in BY_POSITION
        self._table = self._compute(torch.arange(FIRST_TABLE, device=like.device)) if tabled else None

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [tokens, 1, dim] each."""
        if self._table is None:
            found = self._compute(positions)
        else:
            longest = int(positions.max())
            if longest >= len(self._table):
                # A power of two: however it grew, every number comes out of the same vector instructions.
                self._table = self._compute(torch.arange(1 << longest.bit_length(), device=positions.device))
            found = self._table.index_select(0, positions)
        cos, sin = found.chunk(2, dim=-1)
        return cos, sin

    def _compute(self, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self._rotary(self._like, positions[None])
        return torch.cat([cos, sin], dim=-1).transpose(0, 1)


class Turn:
    """Turns the heads in one tensor [tokens, heads, dim] by their positions, into another: pairs are half a head
    apart."""

    def __init__(self, heads: torch.Tensor, turned: torch.Tensor) -> None:
        self._heads = heads
        self._turned = turned
        self._low, self._high = heads.chunk(2, dim=-1)
        self._turned_low, self._turned_high = turned.chunk(2, dim=-1)

    def by(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """From now on by these angles."""
        self._cos = cos
        self._sin_low, self._sin_high = sin.chunk(2, dim=-1)

    def turn(self) -> None:
        torch.mul(self._heads, self._cos, out=self._turned)
        self._turned_low.addcmul_(self._high, self._sin_low, value=-1)
        self._turned_high.addcmul_(self._low, self._sin_high)
