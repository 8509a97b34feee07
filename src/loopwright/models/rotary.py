"""Rotary embeddings in few calls: angles are looked up instead of computed, and values that all layers share are
computed once."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONGROPE = "longrope"
BY_LENGTH = (LONGROPE, "dynamic")
"""Kinds in which transformers chooses the angles of all tokens by the largest position in the row."""

CHOSEN = "chosen"
"""The kind that we give to them after `choose_angles`."""

BY_POSITION = ("default", "linear", "llama3", "yarn", CHOSEN)
"""Kinds in which a token's angles depend only on its position, not on the length of the longest sequence."""

FIRST_TABLE = 1024
"""How many positions the first table has. The table doubles when more are needed."""


def choose_angles(model: Any, max_context: int) -> None:
    """Choose the angles of the kinds `BY_LENGTH` once, as for a sequence of `max_context` tokens. In a packed row they
    would depend on the neighbours. Every process that loads the model for the same context chooses the same angles."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        # If there is one kind per kind of layer, nothing is changed, and the proof decides whether the model can run.
        if isinstance(kind, str) and kind in BY_LENGTH:
            # Dynamic angles are kept as the model made them: they change only beyond the model's own limit, and some
            # models (HunYuan) apply their own factor to them.
            if kind == LONGROPE:
                device = module.inv_freq.device
                frequencies, module.attention_scaling = ROPE_INIT_FUNCTIONS[kind](module.config, device, max_context)
                module.register_buffer("inv_freq", frequencies, persistent=False)
            module.rope_type = CHOSEN


class Angles:
    """The angles of a model's own rotary embedding."""

    def __init__(self, rotary: Any, like: torch.Tensor, *, tabled: bool = True) -> None:
        """If not `tabled`, the angles are computed each time, until `tabulate` is called."""
        self._rotary = rotary
        self._like = like
        self._table: torch.Tensor | None = None
        if tabled:
            self.tabulate()

    def tabulate(self) -> None:
        """From now on look the angles up, if they depend only on a token's position."""
        if getattr(self._rotary, "rope_type", None) in BY_POSITION:
            self._table = self._compute(torch.arange(FIRST_TABLE, device=self._like.device))

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [tokens, 1, dim] each."""
        cos, sin = self._found(positions).chunk(2, dim=-1)
        return cos, sin

    def into(self, out: torch.Tensor, positions: torch.Tensor) -> None:
        """Write the cosines, followed by the sines, to `out` [tokens, 1, 2 * dim]."""
        self._found(positions, out)

    def _found(self, positions: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._table is None:
            computed = self._compute(positions)
            return computed if out is None else out.copy_(computed)
        if not positions.is_cpu:  # there an index that is too large ends the process
            self._reach(positions)
        try:
            # On a CPU index_select checks its indices. Looking for the largest position first would double the cost.
            return torch.index_select(self._table, 0, positions, out=out)
        except IndexError:
            self._reach(positions)
            return torch.index_select(self._table, 0, positions, out=out)

    def _reach(self, positions: torch.Tensor) -> None:
        """Enlarge the table so that it holds all these positions."""
        longest = int(positions.max())
        if self._table is not None and longest >= len(self._table):
            # The size is a power of two, so that all numbers come from the same vector instructions, however it grew.
            self._table = self._compute(torch.arange(1 << longest.bit_length(), device=positions.device))

    def _compute(self, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self._rotary(self._like, positions[None])
        return torch.cat([cos, sin], dim=-1).transpose(0, 1)


class Rotation:
    """Rotates the heads of one tensor [tokens, heads, dim] into another by `angles`, which `Angles.into` has written.
    The two numbers of a pair are half a head apart."""

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
