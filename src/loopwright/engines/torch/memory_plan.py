"""What memory the embedded engine needs, found out with a model and a cache without numbers (`models.shapes`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import torch

from loopwright.engines.torch.cache import KVCache, Row
from loopwright.engines.torch.forward import FIRST_ROW, WORTH_SHARING
from loopwright.engines.torch.prompts import PASS_TOKENS
from loopwright.models.live_memory import LiveMemory
from loopwright.models.native.step import LARGEST, copied_bytes
from loopwright.models.plans import Chunk, ChunkPlan
from loopwright.models.probe import AttentionCall, Probe, run_probe
from loopwright.models.shapes import META, ModelShape

COPIES_OF_LOGITS = 3
"""The logits of a step, and what sampling makes of them: float32 probabilities, and their sums."""


class NoToken(NamedTuple):
    """The shape of a layer's keys or values."""

    heads: int
    dim: int
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """Of no token, and without numbers."""
        return torch.empty(self.heads, 0, self.dim, dtype=self.dtype, device=META)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do at the same time: `sequences` answers of `answer` tokens each, after prompts of `prompt`
    tokens that `siblings` of them share."""

    sequences: int
    siblings: int
    prompt: int
    answer: int

    @property
    def prompts(self) -> int:
        return -(-self.sequences // self.siblings)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes. `copy` is that of the weights, for native steps; `passing` is what one pass of the model takes besides; a
    token that is cached takes `per_token`."""

    copy: int
    keys_and_values: int
    passing: int
    per_token: int


def engine_memory(shape: ModelShape, load: Load, *, native: bool) -> EngineMemory:
    calls = _attention_calls(shape)
    key_bytes = sum(x.shape[1] * x.shape[3] * x.element_size() for call in calls for x in call.tensors[1:])
    alike = Counter((_of_no_token(call.tensors[1]), _of_no_token(call.tensors[2])) for call in calls)
    return EngineMemory(
        copy=_copied(shape) if native else 0,
        keys_and_values=sum(count * _keys_and_values(*sizes, load) for sizes, count in alike.items()),
        passing=max(_prompt_pass(shape, load), COPIES_OF_LOGITS * 4 * load.sequences * shape.vocabulary),
        per_token=key_bytes,
    )


@torch.no_grad()
def _attention_calls(shape: ModelShape) -> list[AttentionCall]:
    return run_probe(shape.loaded.forward, Probe.of(shape.loaded.model, shape.loaded.max_context)).asked


def _copied(shape: ModelShape) -> int:
    parts = shape.loaded.parts
    size = 0 if parts is None else copied_bytes(parts)
    return size if size <= LARGEST else 0


def _of_no_token(x: torch.Tensor) -> NoToken:
    return NoToken(x.shape[1], x.shape[3], x.dtype)


def _keys_and_values(keys: NoToken, values: NoToken, load: Load) -> int:
    """What a layer's arenas take when all sequences have grown from their first token to their last."""
    own, prompts = KVCache(1), KVCache(1)
    memory = LiveMemory()
    with memory:
        key, value = keys.tensor(), values.tensor()
        rows = [prompts.add(load.prompt) for _ in range(load.prompts)]
        for row in rows:
            row.arena.layer(0, key, value)
        is_shared = keys.heads * load.prompt * keys.dim > WORTH_SHARING
        head, room = 0 if is_shared else load.prompt, min(load.answer, FIRST_ROW)
        live = [own.add(head + room) for _ in range(load.sequences)]
        length = head + room
        while True:
            live = [_reserved(own, row, length, key, value) for row in live]
            if length == head + load.answer:
                return memory.peak
            length = min(2 * live[0].arena.capacity, head + load.answer)


def _reserved(cache: KVCache, row: Row, length: int, key: torch.Tensor, value: torch.Tensor) -> Row:
    row = cache.reserve(row, length)
    row.arena.layer(0, key, value)
    row.length = length
    return row


@torch.no_grad()
def _prompt_pass(shape: ModelShape, load: Load) -> int:
    """What the largest pass over prompts takes."""
    loaded, device = shape.loaded, shape.loaded.model.device
    count = max(1, min(load.prompts, PASS_TOKENS // load.prompt))
    size = count * load.prompt
    chunks = [Chunk(start, start + load.prompt) for start in range(0, size, load.prompt)]
    ids = torch.zeros(size, dtype=torch.long, device=device)
    keep = torch.zeros(count, dtype=torch.long, device=device)
    memory = LiveMemory()
    with memory:
        loaded.forward.logits(ids, torch.zeros_like(ids), ChunkPlan(chunks), keep)
    return memory.peak
