"""Rotary embeddings in few calls: angles are looked up instead of computed, and all that layers share is made once."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONGROPE = "longrope"
BY_LENGTH = (LONGROPE, "dynamic")
"""Kinds in which transformers chooses the angles of all tokens by the largest position in the row."""

CHOSEN = "chosen"
"""What becomes of them here."""

BY_POSITION = ("default", "linear", "llama3", "yarn", CHOSEN)
"""Kinds in which the angles of a token depend on its position alone, not on how long the longest sequence is."""

FIRST_TABLE = 1024
"""Positions in the first table; it doubles by need."""


def choose_angles(model: Any, max_context: int) -> None:
    """Choose the angles of kinds `BY_LENGTH` once, as for a sequence of `max_context` tokens: in a packed row they
    would depend on the neighbours. Whoever loads the model for the same context, in any process, chooses the same."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        # Where it is a choice per kind of layer, the proof decides whether it does any harm.
        if isinstance(kind, str) and kind in BY_LENGTH:
            # Dynamic ones are kept as the model made them: they change only beyond its own limit, and some models
            # (HunYuan) put a factor of their own into them.
            if kind == LONGROPE:
                device = module.inv_freq.device
                frequencies, module.attention_scaling = ROPE_INIT_FUNCTIONS[kind](module.config, device, max_context)
                module.register_buffer("inv_freq", frequencies, persistent=False)
            module.rope_type = CHOSEN


class Angles:
    """The angles of a model's own rotary embedding."""

    def __init__(self, rotary: Any, like: torch.Tensor, *, tabled: bool = True) -> None:
        """Unless `tabled`, they are computed each time, until `tabulate` is called."""
        self._rotary = rotary
        self._like = like
        self._table: torch.Tensor | None = None
        if tabled:
            self.tabulate()

    def tabulate(self) -> None:
        """Look them up from now on, if they depend on a token's position alone."""
        if getattr(self._rotary, "rope_type", None) in BY_POSITION:
            self._table = self._compute(torch.arange(FIRST_TABLE, device=self._like.device))

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [tokens, 1, dim] each."""
        cos, sin = self._found(positions).chunk(2, dim=-1)
        return cos, sin

    def into(self, out: torch.Tensor, positions: torch.Tensor) -> None:
        """Write cosines and, behind them, sines to `out` [tokens, 1, 2 * dim]."""
        self._found(positions, out)

    def _found(self, positions: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._table is None:
            computed = self._compute(positions)
            return computed if out is None else out.copy_(computed)
        if not positions.is_cpu:  # where an index that is too large ends the process
            self._reach(positions)
        try:
            # On a CPU it checks its indices: to look for the longest first would cost as much again.
            return torch.index_select(self._table, 0, positions, out=out)
        except IndexError:
            self._reach(positions)
            return torch.index_select(self._table, 0, positions, out=out)

    def _reach(self, positions: torch.Tensor) -> None:
        """Let the table hold them all."""
        longest = int(positions.max())
        if self._table is not None and longest >= len(self._table):
            # A power of two: however it grew, every number comes out of the same vector instructions.
            self._table = self._compute(torch.arange(1 << longest.bit_length(), device=positions.device))

    def _compute(self, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self._rotary(self._like, positions[None])
        return torch.cat([cos, sin], dim=-1).transpose(0, 1)


class Rotation:
    """Turns the heads in one tensor [tokens, heads, dim], into another, by `angles`, where `Angles.into` has written:
    pairs are half a head apart."""

    def __init__(self, heads: torch.Tensor, turned: torch.Tensor, angles: torch.Tensor) -> None:
        self.angles = angles
        self._heads = heads
        self._turned = turned
        self._low, self._high = heads.chunk(2, dim=-1)
        self._turned_low, self._turned_high = turned.chunk(2, dim=-1)
        self._cos, sin = angles.chunk(2, dim=-1)
        self._sin_low, self._sin_high = sin.chunk(2, dim=-1)

    def turn(self) -> None:
        torch.mul(self._heads, self._cos, out=self._turned)
        self._turned_low.addcmul_(self._high, self._sin_low, value=-1)
        self._turned_high.addcmul_(self._low, self._sin_high)
