"""The model's forward passes, and the cache that they read and write.

One pass serves everything that is due: a token for each live sequence, and the prompts of those that join. Weights are
read once per pass, so a prompt that travels along costs little more than its own arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import torch

from loopwright.engines.torch.cache import KVCache, Row
from loopwright.engines.torch.decode import DecodePlan, decode_order
from loopwright.engines.torch.sequence import Prefix, Sequence
from loopwright.models.load import LoadedModel
from loopwright.models.plans import Chunk, ChunkPlan

PROMPT_TOKENS = 4096
"""Prompts computed in one pass; bounds its memory. A longer prompt stands alone."""

FIRST_ROW = 64
"""Tokens that a new sequence gets room for, unless its limit is smaller. It doubles whenever it is full."""


class Forward:
    """Runs the model. Rows of the cache belong to prefixes and sequences, and are given back with `release`."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.forward
        self._layers = loaded.model.config.num_hidden_layers
        self.forget()

    def forget(self) -> None:
        """Start with an empty cache: after a failure it may hold anything, NaN included."""
        self._prompts, self._own = KVCache(self._layers), KVCache(self._layers)
        self._plan: DecodePlan | None = None
        self._planned_for: tuple[object, ...] = ()

    def release(self, holder: Prefix | Sequence) -> None:
        if holder.row is not None:
            holder.row.arena.remove(holder.row)
            holder.row = None

    def advance(self, sequences: Seq[Sequence], prefixes: Iterable[Prefix]) -> tuple[list[Sequence], torch.Tensor]:
        """Compute the prompts, and the logits after the newest token of each sequence.

        Returns the sequences in the order of the logits' rows; a prefix keeps its own logits.
        """
        *parts, last = [*_by_tokens(prefixes, PROMPT_TOKENS)] or [[]]
        for part in parts:
            self._pass([], part)
        return self._pass(sequences, last)

    def recompute(self, prefixes: Iterable[Prefix], sequences: Iterable[Sequence]) -> None:
        """Compute again, under other weights, all that is cached."""
        alive = [prefix for prefix in prefixes if prefix.row is not None]
        for part in _by_tokens(alive, PROMPT_TOKENS):
            self._pass([], part)
        for sequence in sequences:
            # The newest token has not been fed yet: the next pass feeds it.
            ids, start = sequence.ids[:-1], len(sequence.prefix.ids)
            if ids:
                plan = ChunkPlan([Chunk(0, len(ids), _Kept(sequence.row, after=sequence.prefix.row))])
                self._run(ids, range(start, start + len(ids)), plan, [0])

    def _pass(self, sequences: Seq[Sequence], prefixes: Seq[Prefix]) -> tuple[list[Sequence], torch.Tensor]:
        ordered, decode = self._decode_plan(sequences)
        ids = [s.ids[-1] for s in ordered]
        positions = [s.position for s in ordered]
        keep = list(range(len(ids)))
        chunks = []
        for prefix in prefixes:
            prefix.row = prefix.row or self._prompts.add(len(prefix.ids))
            chunks.append(Chunk(len(ids), len(ids) + len(prefix.ids), _Kept(prefix.row)))
            ids += prefix.ids
            positions += range(len(prefix.ids))
            keep.append(len(ids) - 1)
        if not ids:
            return [], torch.empty(0)
        logits = self._run(ids, positions, StepPlan(len(ordered), decode, ChunkPlan(chunks)), keep)
        for prefix, own in zip(prefixes, logits[len(ordered) :], strict=True):
            prefix.logits = own.clone()
        return ordered, logits[: len(ordered)]

    def _decode_plan(self, sequences: Seq[Sequence]) -> tuple[list[Sequence], DecodePlan | None]:
        if not sequences:
            return [], None
        for sequence in sequences:
            row = sequence.row or self._own.add(min(sequence.limit, FIRST_ROW))
            sequence.row = self._own.reserve(row, len(sequence.ids))
            sequence.row.length = len(sequence.ids)
        layout = (self._own.layout, self._prompts.layout, *map(id, sequences))
        if self._plan is not None and self._planned_for == layout:
            # The same sequences in the same rows, each one token further.
            self._plan.advance()
        else:
            ordered = decode_order(self._own.arenas, sequences)
            self._plan = DecodePlan(ordered, self._own.arenas, self._prompts.arenas)
            self._planned_for = layout
        return self._plan.sequences, self._plan

    def _run(
        self, ids: Seq[int], positions: Iterable[int], plan: ChunkPlan | StepPlan, keep: list[int]
    ) -> torch.Tensor:
        kept = None if len(keep) == len(ids) else torch.tensor(keep)
        return self._model.logits(torch.tensor(ids), torch.tensor(list(positions)), plan, kept)


class StepPlan:
    """The attention of one pass: first the tokens of live sequences, then new prompts."""

    def __init__(self, decoding: int, decode: DecodePlan | None, chunks: ChunkPlan) -> None:
        self._decoding = decoding
        self._decode = decode
        self._chunks = chunks

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        parts = []
        if self._decode is not None:
            q, k, v = (x[:, :, : self._decoding] for x in (query, key, value))
            parts.append(self._decode.attend(layer, q, k, v, scaling=scaling, window=window))
        if self._chunks.chunks:
            parts.append(self._chunks.attend(layer, query, key, value, scaling=scaling, window=window))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _Kept:
    """A chunk's context: the row that keeps its keys and values, and perhaps a shared prompt before it."""

    def __init__(self, row: Row | None, after: Row | None = None) -> None:
        if row is None:
            raise RuntimeError("a chunk needs a row to keep its keys in")
        self._row = row
        self._after = after

    @property
    def past(self) -> int:
        return 0 if self._after is None else self._after.length

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._row.length = key.shape[2]
        self._row.write(layer, key[0], value[0])
        if self._after is None:
            return key, value
        shared = self._after.read(layer)
        if shared is None:
            raise RuntimeError("a prompt is gone that tokens after it still need")
        past_key, past_value = (x[None] for x in shared)
        return torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)


def _by_tokens(prefixes: Iterable[Prefix], most: int) -> Iterable[list[Prefix]]:
    """Prompts in order, cut so that each part has at most `most` tokens."""
    part: list[Prefix] = []
    size = 0
    for prefix in prefixes:
        if part and size + len(prefix.ids) > most:
            yield part
            part, size = [], 0
        part.append(prefix)
        size += len(prefix.ids)
    if part:
        yield part
