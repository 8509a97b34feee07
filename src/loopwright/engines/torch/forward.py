"""The model's forward passes, and the cache that they read and write.

One pass computes everything that is due: a token for each live sequence, and the prompts of new ones. Weights are read
once per pass, so a prompt in the same pass costs little more than its own arithmetic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import groupby
from operator import attrgetter

import torch

from loopwright.engines.torch.cache import KVCache, Row
from loopwright.engines.torch.decode import DecodePlan, decode_order
from loopwright.engines.torch.lists import tensor_of
from loopwright.engines.torch.prompts import Prompts
from loopwright.engines.torch.sequence import Prefix, Sequence
from loopwright.models.attention import AttentionPlan
from loopwright.models.load import LoadedModel
from loopwright.models.native.step import NoRoomError
from loopwright.models.plans import Chunk, ChunkPlan

log = logging.getLogger("loopwright")

FIRST_ROW = 64
"""How many tokens a new sequence gets room for, unless its limit is smaller. The room doubles when it is full."""

WORTH_SHARING = 4096
"""If a layer's keys of a prompt have fewer numbers than this, the prompt is copied into the rows of its sequences:
reading it once per sequence costs less than the calls that merge its attention."""

WORTH_KEEPING_APART = 2**15
"""The same limit for a prompt that only one request has when it begins to decode: reading the prompt in the row costs
no more, and copying it once costs less than merging at each token. A sibling that comes later shares the prompt with
others."""


class Forward:
    """Runs the model. Rows of the cache belong to prefixes and sequences, and are freed with `release`."""

    def __init__(self, loaded: LoadedModel, *, cache_tokens: int) -> None:
        self._loaded = loaded
        self._model = loaded.forward
        self._device: torch.device = loaded.model.device
        self._layers = loaded.model.config.num_hidden_layers
        self._prompts = Prompts(self._layers, cache_tokens)
        self._is_without_room = False
        self.forget()

    def beside(self) -> Forward:
        """A forward pass with a cache of its own, and with the same weights and their copy."""
        other = Forward(self._loaded, cache_tokens=0)
        self._pack()
        other._native = self._native
        return other

    def score(self, prefix: Prefix) -> torch.Tensor:
        """Compute a prompt, and keep all of its logits: the logprobs of its tokens but the first at temperature 1. What
        is sampled after the prompt begins with its last logits, as always."""
        for _ in self._prompts.in_passes([prefix]):
            ids, plan = self._tensor(prefix.ids), ChunkPlan([Chunk(0, len(prefix.ids), _Kept(prefix.row))])
            logits = self._model.logits(ids, torch.arange(len(ids), device=self._device), plan, None)
            prefix.logits = logits[-1].clone()
        return logits[:-1].float().log_softmax(-1).gather(1, ids[1:, None])[:, 0]

    def forget(self) -> None:
        """Start with an empty cache. After a failure the cache may hold wrong values, even NaN."""
        self.unpack()
        self._prompts.clear()
        self._whole, self._own = KVCache(self._layers), KVCache(self._layers)
        self._plan: DecodePlan | None = None
        self._planned_for: object = None

    def unpack(self) -> None:
        """Discard the copy of the weights. The next step copies the weights again."""
        self._native = self._model.native()

    def _pack(self) -> None:
        """Copy the weights for native steps. If there is no memory for it, torch decodes until the weights change."""
        try:
            if self._native is not None:
                self._native.pack()
        except NoRoomError as error:
            self._native = None
            if not self._is_without_room:
                log.warning("no memory for the copy of the weights that native steps read (%s): torch decodes", error)
            self._is_without_room = True

    def keep(self, sequence: Sequence) -> None:
        """Keep the keys and values of a request that ends, for prompts that begin like it."""
        self._prompts.keep_answer(sequence)

    def release(self, holder: Prefix | Sequence) -> None:
        if holder.row is not None:
            holder.row.arena.remove(holder.row)
            holder.row = None

    def advance(self, sequences: Seq[Sequence], prefixes: Iterable[Prefix]) -> tuple[list[Sequence], torch.Tensor]:
        """Compute the prompts, and the logits after the newest token of each sequence.

        Returns the sequences in the order of the logits' rows. The logits after a prompt are stored in its prefix.
        """
        # Plan first: prompts that join in this pass have no keys yet.
        decode, prefixes = self._decode_plan(sequences), list(prefixes)
        if decode is not None and not prefixes:
            self._pack()
        if decode is not None and (prefixes or self._native is None):
            decode.prepare()
        passes = self._prompts.in_passes(prefixes)
        logits = self._pass(decode, next(passes, []))
        for part in passes:
            self._pass(None, part)
        return ([], logits) if decode is None else (decode.sequences, logits)

    def recompute(self, prefixes: Iterable[Prefix], sequences: Iterable[Sequence]) -> None:
        """Compute all live prefixes and sequences again, with other weights."""
        self.unpack()
        alive = [prefix for prefix in prefixes if prefix.row is not None]
        self._prompts.outdate(alive)
        for part in self._prompts.in_passes(alive):
            self._pass(None, part)
        for sequence in sequences:
            # The newest token was not fed to the model yet. The next pass feeds it.
            ids, start, row = sequence.ids[:-1], len(sequence.prefix.ids), sequence.row
            if row is not None and row.head:
                row.arena.begin([row], _computed(sequence.prefix))
            if ids:
                plan = ChunkPlan([Chunk(0, len(ids), _behind_prompt(sequence))])
                self._run(ids, torch.arange(start, start + len(ids), device=self._device), plan, [0])

    def _pass(self, decode: DecodePlan | None, prefixes: Seq[Prefix]) -> torch.Tensor:
        """The logits after the newest tokens of the sequences. Logits after a prompt are stored in its prefix."""
        ids = [s.ids[-1] for s in decode.sequences] if decode else []
        if decode and not prefixes:
            return self._run(ids, decode.positions, decode)
        decoding = len(ids)
        positions = decode.positions.tolist() if decode else []
        keep = list(range(decoding))
        chunks = []
        for prefix in prefixes:
            new = prefix.ids[prefix.known :]
            chunks.append(Chunk(len(ids), len(ids) + len(new), _Kept(prefix.row, start=prefix.known)))
            ids += new
            positions += range(prefix.known, len(prefix.ids))
            keep.append(len(ids) - 1)
        if not ids:
            return torch.empty(0, device=self._device)
        logits = self._run(ids, self._tensor(positions), PassPlan(decoding, decode, ChunkPlan(chunks)), keep)
        for prefix, own in zip(prefixes, logits[decoding:], strict=True):
            prefix.logits = own.clone()
            self._prompts.keep(prefix)
        return logits[:decoding]

    def _decode_plan(self, sequences: Seq[Sequence]) -> DecodePlan | None:
        if not sequences:
            return None
        if self._plan is not None and not self._plan.is_full and self._planned_for == self._layout(sequences):
            # These are the same sequences in the same rows, each with one more token.
            self._plan.advance()
            return self._plan
        self._add_rows(s for s in sequences if s.row is None)
        for sequence in sequences:
            row = _own(sequence)
            length = row.head + len(sequence.ids)
            sequence.row = (self._whole if row.head else self._own).reserve(row, length)
            sequence.row.length = length
        whole, own = self._whole.arenas, self._own.arenas
        ordered = decode_order([*whole, *own], sequences)
        self._plan = DecodePlan(ordered, whole, own, self._prompts.rows.arenas, self._device)
        self._planned_for = self._layout(sequences)
        return self._plan

    def _layout(self, sequences: Seq[Sequence]) -> object:
        return self._whole.layout, self._own.layout, self._prompts.rows.layout, sequences

    def _add_rows(self, sequences: Iterable[Sequence]) -> None:
        """Add rows with room for a few tokens. A short prompt is copied into the row first, in one copy for all
        neighbouring rows."""
        behind: list[tuple[Row, Row]] = []
        for prefix, members in groupby(sequences, key=attrgetter("prefix")):
            prompt = _computed(prefix)
            shared = prompt.held(0)[0].numel() > (WORTH_SHARING if prefix.users > 1 else WORTH_KEEPING_APART)
            for sequence in members:
                room = min(sequence.limit, FIRST_ROW)
                sequence.row = self._own.add(room) if shared else self._whole.add(prompt.length + room)
                if not shared:
                    behind.append((prompt, sequence.row))
        # Copy after all rows were added, so that an arena grows only once.
        for (prompt, arena), pairs in groupby(behind, key=lambda pair: (pair[0], pair[1].arena)):
            arena.begin([row for _, row in pairs], prompt)

    def _run(
        self,
        ids: Seq[int],
        positions: torch.Tensor,
        plan: AttentionPlan,
        keep: Seq[int] | None = None,
    ) -> torch.Tensor:
        """The logits after the tokens in `keep`. None means all tokens."""
        if isinstance(plan, DecodePlan) and self._native is not None:
            return self._native.logits(self._tensor(ids), positions, plan.cells(self._layers, self._native.heads))
        kept = None if keep is None or len(keep) == len(ids) else self._tensor(keep)
        return self._model.logits(self._tensor(ids), positions, plan, kept)

    def _tensor(self, numbers: Seq[int]) -> torch.Tensor:
        return tensor_of(numbers, self._device)


class PassPlan:
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
    """A chunk's context: the row for its keys and values, which already holds `start` tokens, and perhaps a shared
    prompt before it."""

    def __init__(self, row: Row | None, start: int = 0, after: Row | None = None) -> None:
        if row is None:
            raise RuntimeError("a chunk needs a row to keep its keys in")
        self._row = row
        self._start = start
        self._after = after

    @property
    def past(self) -> int:
        return self._start + (0 if self._after is None else self._after.length)

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._row.write(layer, key[0], value[0], self._start)
        self._row.length = self._start + key.shape[2]
        if not self.past:
            return key, value
        held = [row.held(layer) for row in (self._after, self._row) if row is not None]
        keys, values = (torch.cat(part, dim=1)[None] for part in zip(*held, strict=True))
        return keys, values


def _own(sequence: Sequence) -> Row:
    if sequence.row is None:
        raise RuntimeError("a sequence decodes that has no row")
    return sequence.row


def _computed(prefix: Prefix) -> Row:
    if prefix.row is None:
        raise RuntimeError("a prompt is gone that tokens behind it still need")
    return prefix.row


def _behind_prompt(sequence: Sequence) -> _Kept:
    """The context of the tokens that a sequence has sampled."""
    if sequence.row is not None and sequence.row.head:
        return _Kept(sequence.row, start=sequence.row.head)
    return _Kept(sequence.row, after=_computed(sequence.prefix))
