"""The tokens with which a model is tested when it is loaded: sequences that a run may have, packed into one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from loopwright.models.attention import AttentionPlan
from loopwright.models.forward import PackedForward
from loopwright.models.plans import Chunk, ChunkPlan

SPREAD = 7919
"""The distance between the ids of neighbouring tokens, so that few of them are special tokens. On a row of special
tokens a trained model computes almost noise: SmolLM2 in bfloat16 then differed by 41 from its own attention; with these
ids it differs by 0.6."""
TOKENS = 8
"""How many tokens each sequence has, unless a window needs more."""
WIDEST = 128
"""The widest window that is tested with a longer row. Wider windows would take a large model many seconds; for these
`models.masks` asks the model's masks."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Three kinds of sequences: a few tokens from the first position on, more tokens than the windows hold, and the
    last positions that the run may use. All are in one packed row, as in a batch."""

    ids: torch.Tensor
    positions: torch.Tensor
    chunks: tuple[Chunk, ...]

    @staticmethod
    def of(model: Any, max_context: int, windows: Iterable[int] = ()) -> Probe:
        window = max((window for window in windows if window <= WIDEST), default=None)
        wanted = [TOKENS, TOKENS] if window is None else [TOKENS, window + TOKENS, TOKENS]
        lengths = [min(tokens, max_context) for tokens in wanted]
        starts = [*([0] * (len(lengths) - 1)), max_context - lengths[-1]]
        device = model.device
        positions = [
            torch.arange(start, start + length, device=device) for start, length in zip(starts, lengths, strict=True)
        ]
        ends = list(accumulate(lengths))
        return Probe(
            # Every sequence has different tokens.
            ids=torch.arange(1, ends[-1] + 1, device=device) * SPREAD % model.config.vocab_size,
            positions=torch.cat(positions),
            chunks=tuple(Chunk(end - length, end) for end, length in zip(ends, lengths, strict=True)),
        )

    def plan(self) -> ChunkPlan:
        return ChunkPlan(self.chunks)

    def alone(self) -> list[Probe]:
        """Each sequence as a row of its own."""
        parts = [(slice(chunk.start, chunk.end), (Chunk(0, chunk.end - chunk.start),)) for chunk in self.chunks]
        return [Probe(self.ids[part], self.positions[part], chunks) for part, chunks in parts]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer passes to attention."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    scaling: float
    window: int | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a forward pass over a probe: each layer's call of attention, and the logits."""

    probe: Probe
    asked: list[AttentionCall]
    logits: torch.Tensor


def run_probe(forward: PackedForward, probe: Probe) -> ProbeResult:
    plan = _Recording(probe.plan())
    return ProbeResult(probe, plan.asked, forward.logits(probe.ids, probe.positions, plan, None))


class _Recording:
    """A plan that records its calls."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.asked: list[AttentionCall] = []
        self._plan = plan

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
        # Cloned, because the caller may overwrite the tensors in its next layer.
        self.asked.append(AttentionCall((query.clone(), key.clone(), value.clone()), scaling, window))
        return self._plan.attend(layer, query, key, value, scaling=scaling, window=window)
