"""Continuous batching as a step machine: no threads, no clock, so that every order of events can be tested.

    submit -> waiting -> (a slot is free) -> prompt computed, once per distinct prompt -> live
           -> one token per step -> finished

Requests join and leave at every step. Each token is stamped with the version of the weights that sampled it (T4).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from loopwright.engines.torch.cache import KVCache, Row
from loopwright.engines.torch.choose import choose
from loopwright.engines.torch.decode import DecodePlan, decode_order
from loopwright.engines.torch.sequence import Prefix, Sequence
from loopwright.engines.torch.stopping import Stopping
from loopwright.models.load import LoadedModel
from loopwright.models.plans import Chunk, ChunkPlan
from loopwright.types import FinishReason, GenerateRequest

PREFILL_TOKENS = 4096
"""Prompts computed in one forward pass; bounds its memory. A longer prompt stands alone."""

FIRST_ROW = 64
"""Tokens that a new sequence gets room for, unless its limit is smaller. It doubles whenever it is full."""


class Batch:
    """All requests of one engine, and the cache behind them."""

    def __init__(self, loaded: LoadedModel, *, max_batch: int, version: int = 0) -> None:
        self.version = version
        self.waiting: list[Sequence] = []
        self.live: list[Sequence] = []
        self._model: Any = loaded.model
        self._max_batch = max_batch
        self._max_context = loaded.max_context
        self._stopping = Stopping(loaded.tokenizer)
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._layers = loaded.model.config.num_hidden_layers
        self._prompts = KVCache(self._layers)
        self._own = KVCache(self._layers)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.live)

    def submit(self, request: GenerateRequest) -> Sequence:
        """Queue a request. A prompt that is already here is shared, whoever brought it."""
        prefix = self._prefixes.setdefault(request.prompt_ids, Prefix(request.prompt_ids))
        prefix.users += 1
        room = self._max_context - len(request.prompt_ids)
        sequence = Sequence(request, prefix, limit=min(request.sampling.max_new_tokens, room))
        self.waiting.append(sequence)
        return sequence

    def drop(self, sequence: Sequence) -> None:
        """Free all that a request holds, finished or not."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.live:
            self.live.remove(sequence)
        if sequence.row is not None:
            sequence.row.arena.remove(sequence.row)
            sequence.row = None
        prefix = sequence.prefix
        prefix.users -= 1
        if prefix.users == 0:
            del self._prefixes[prefix.ids]
            if prefix.row is not None:
                prefix.row.arena.remove(prefix.row)
                prefix.row = None

    def reset(self) -> None:
        """Forget every request and all that is cached: after a failure it may be anything, NaN included."""
        self.waiting, self.live = [], []
        self._prefixes = {}
        self._prompts, self._own = KVCache(self._layers), KVCache(self._layers)

    @torch.inference_mode()
    def step(self, *, admit: bool = True) -> list[Sequence]:
        """Admit what fits, give every live sequence one token, and return those that finished."""
        with self._device():
            joined = self._admit() if admit else []
            going_on = list(self.live)
            self.live += joined
            self._first_tokens(joined)
            self._next_tokens(going_on)
        finished = [s for s in self.live if s.finish is not None]
        for sequence in finished:
            self.drop(sequence)
        return finished

    @torch.inference_mode()
    def reload(self, version: int) -> None:
        """Go on under other weights: the keys and values of everything alive are computed anew."""
        self.version = version
        with self._device():
            alive = [prefix for prefix in self._prefixes.values() if prefix.row is not None]
            for prefix in alive:
                self._clear(prefix.row)
            self._prefill(alive)
            for sequence in self.live:
                if sequence.row is not None:
                    self._clear(sequence.row)
            self._recompute([s for s in self.live if len(s.ids) > 1])

    def _admit(self) -> list[Sequence]:
        free = self._max_batch - len(self.live)
        joined, self.waiting = self.waiting[:free], self.waiting[free:]
        for sequence in joined:
            if sequence.limit <= 0:
                sequence.finish = FinishReason.LENGTH
        wanted = {id(s.prefix): s.prefix for s in joined if s.finish is None and s.prefix.logits is None}
        self._prefill(wanted.values())
        return joined

    def _prefill(self, prefixes: Iterable[Prefix]) -> None:
        for some in _by_tokens(prefixes, PREFILL_TOKENS):
            chunks: list[Chunk] = []
            ends: list[int] = []
            ids: list[int] = []
            start = 0
            for prefix in some:
                prefix.row = prefix.row or self._prompts.add(len(prefix.ids))
                end = start + len(prefix.ids)
                chunks.append(Chunk(start, end, _Grow(prefix.row)))
                ends.append(end - 1)
                ids += prefix.ids
                start = end
            positions = [i for prefix in some for i in range(len(prefix.ids))]
            logits = self._forward(ids, positions, ChunkPlan(chunks), ends)
            for prefix, row in zip(some, logits, strict=True):
                prefix.row.length = len(prefix.ids)  # type: ignore[union-attr]
                prefix.logits = row.clone()

    def _recompute(self, sequences: Iterable[Sequence]) -> None:
        """Feed again what a sequence had sampled, all but its newest token, which the next step feeds."""
        for sequence in sequences:
            ids, start = sequence.ids[:-1], len(sequence.prefix.ids)
            context = _Grow(sequence.row, after=sequence.prefix.row)
            plan = ChunkPlan([Chunk(0, len(ids), context)])
            self._forward(ids, list(range(start, start + len(ids))), plan, [0])
            sequence.row.length = len(ids)  # type: ignore[union-attr]

    def _first_tokens(self, joined: list[Sequence]) -> None:
        starting = [s for s in joined if s.finish is None]
        if starting:
            logits = torch.stack([s.prefix.logits for s in starting if s.prefix.logits is not None])
            self._sample(starting, logits)

    def _next_tokens(self, sequences: list[Sequence]) -> None:
        if not sequences:
            return
        for sequence in sequences:
            row = sequence.row or self._own.add(min(sequence.limit, FIRST_ROW))
            sequence.row = self._own.reserve(row, len(sequence.ids))
            sequence.row.length = len(sequence.ids)
        ordered = decode_order(self._own.arenas, sequences)
        plan = DecodePlan(ordered, self._own.arenas, self._prompts.arenas)
        positions = [s.position for s in ordered]
        logits = self._forward([s.ids[-1] for s in ordered], positions, plan, slice(None))
        self._sample(ordered, logits)

    def _sample(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        positions = [s.position + 1 for s in sequences]
        ids, logprobs = choose(logits, [s.request.sampling for s in sequences], positions)
        for sequence, token, logprob in zip(sequences, ids, logprobs, strict=True):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.versions.append(self.version)
            if self._stopping.reached(sequence.request.sampling, sequence.ids):
                sequence.finish = FinishReason.STOP
            elif len(sequence.ids) >= sequence.limit:
                sequence.finish = FinishReason.LENGTH

    def _forward(
        self, ids: list[int], positions: list[int], plan: ChunkPlan | DecodePlan, keep: list[int] | slice
    ) -> torch.Tensor:
        kept = 0 if isinstance(keep, slice) else torch.tensor(keep)
        output = self._model(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([positions]),
            use_cache=False,
            logits_to_keep=kept,
            plan=plan,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _clear(self, row: Row | None) -> None:
        if row is not None:
            row.length = 0

    def _device(self) -> AbstractContextManager[Any]:
        """On an accelerator, make it the default for new tensors. On CPU the context would only cost time."""
        device: torch.device = self._model.device
        return nullcontext() if device.type == "cpu" else device


class _Grow:
    """A chunk's context: an optional shared prompt before it, and the row that its keys and values are kept in."""

    def __init__(self, row: Row | None, after: Row | None = None) -> None:
        if row is None:
            raise RuntimeError("a chunk needs a row to keep its keys in")
        self.row = row
        self.after = after

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = key.shape[2]
        keys, values = self.row.arena.layer(layer, key, value)
        keys[self.row.index, :, :tokens] = key[0]
        values[self.row.index, :, :tokens] = value[0]
        if self.after is None:
            return key, value
        before = slice(self.after.index, self.after.index + 1)
        shared = self.after.arena.layer(layer, key, value)
        past_key, past_value = (x[before, :, : self.after.length] for x in shared)
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
