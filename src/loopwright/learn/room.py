"""What a learner says when memory runs out: how much it wanted to compute, and which setting halves that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from loopwright.core.packing import Packed
from loopwright.errors import LearnerError
from loopwright.models.memory import is_out_of_memory, memory_of


@dataclass(frozen=True, slots=True)
class Room:
    """Where a learner computes, and the settings that decide how much memory it needs."""

    device: torch.device
    micro_batch_tokens: int
    checkpoints: bool

    @contextmanager
    def for_rows(self, rows: Sequence[Packed]) -> Iterator[None]:
        """While a micro-batch of these rows is computed."""
        tokens = sum(row.tokens for row in rows)
        chain = max(row.prefix + rest for row in rows for rest in row.rests)
        with self._named(f"in a micro-batch of {tokens:,} tokens", self._smaller_batches(tokens, chain)):
            yield

    @contextmanager
    def for_update(self, parameters: int) -> Iterator[None]:
        """While the optimiser updates so many parameters."""
        what = f"in the update of {parameters:,} parameters, for which AdamW keeps two float32 numbers each"
        with self._named(what, "choose a smaller model, or a device with more memory"):
            yield

    def _smaller_batches(self, tokens: int, chain: int) -> str:
        """What halves the activations of such a micro-batch. Its longest chain cannot be split."""
        half, ways = min(self.micro_batch_tokens, tokens) // 2, []
        if half >= chain:
            ways.append(f"set learner.micro_batch_tokens to {half}, which halves the activations")
        if not self.checkpoints:
            ways.append("set learner.checkpoint_activations, which keeps only the input of each layer")
        if half < chain:
            ways.append(
                f"shorten the longest chain ({chain:,} tokens; a chain is never split) by rollout.max_new_tokens or "
                "model.max_context"
            )
        return "; or ".join(ways)

    @contextmanager
    def _named(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise LearnerError(f"out of memory on {memory_of(self.device)} {what}: {error}", remedy=remedy) from error
