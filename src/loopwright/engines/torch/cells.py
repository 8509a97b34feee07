"""Describes where the keys of live sequences are, for native steps."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from loopwright.engines.torch.cache import Arena, Row
from loopwright.engines.torch.sequence import Sequence
from loopwright.models.native.cells import Cells
from loopwright.models.native.panels import empty_floats
from loopwright.models.workspace import Heads

NO_PROMPT = (-1, -1, 0)


def cells_of(sequences: Seq[Sequence], layers: int, heads: Heads) -> Cells:
    """The cells of these sequences, in their order. All must have rows. A prompt is in a sequence's own row, or
    shared."""
    arenas: dict[Arena, int] = {}

    def place(row: Row | None) -> tuple[int, int, int]:
        if row is None:
            raise RuntimeError("a sequence decodes that has no row, or whose prompt has none")
        return arenas.setdefault(row.arena, len(arenas)), row.index, row.length

    cells = [
        (*place(s.row), *(NO_PROMPT if s.row is not None and s.row.head else place(s.prefix.row))) for s in sequences
    ]
    nothing = empty_floats(heads.keys, 0, heads.dim)
    pairs = [[arena.layer(layer, nothing, nothing) for arena in arenas] for layer in range(layers)]
    return Cells(
        cells, [[key for key, _ in layer] for layer in pairs], [[value for _, value in layer] for layer in pairs]
    )
