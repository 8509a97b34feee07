"""What a learner says when memory runs out: how much it wanted to compute, and which setting halves that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from loopwright.core.packing import Packed
from loopwright.errors import LearnerError
from loopwright.models.memory import GIB, SMALLER_STATE, is_out_of_memory, memory_of

MOMENT_BYTES = 8
"""What AdamW keeps for each parameter that it trains: two float32 numbers."""


def smaller_batches(tokens: int, chain: int, *, limit: int, checkpoints: bool) -> str:
    """What halves the activations of a micro-batch of so many tokens, where `limit` is learner.micro_batch_tokens. Its
    longest chain cannot be split."""
    half, ways = min(limit, tokens) // 2, []
    if half >= chain:
        ways.append(f"set learner.micro_batch_tokens to {half}, which halves the activations")
    if not checkpoints:
        ways.append("set learner.checkpoint_activations, which keeps only the input of each layer")
    if half < chain:
        ways.append(
            f"shorten the longest chain ({chain:,} tokens; a chain is never split) by rollout.max_new_tokens or "
            "model.max_context"
        )
    return "; or ".join(ways)


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
        remedy = smaller_batches(tokens, chain, limit=self.micro_batch_tokens, checkpoints=self.checkpoints)
        with self._named(f"in a micro-batch of {tokens:,} tokens", remedy):
            yield

    @contextmanager
    def for_state(self, size: int, what: str) -> Iterator[None]:
        """While `size` bytes are made that stay."""
        with self._named(f"for {size / GIB:.2f} GiB of {what}", SMALLER_STATE):
            yield

    @contextmanager
    def for_update(self, parameters: int) -> Iterator[None]:
        """While the optimiser updates so many parameters."""
        size = MOMENT_BYTES * parameters / GIB
        what = f"in the update of {parameters:,} parameters, for which AdamW keeps two float32 numbers each"
        with self._named(f"{what} ({size:.1f} GiB)", SMALLER_STATE):
            yield

    @contextmanager
    def _named(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise LearnerError(f"out of memory on {memory_of(self.device)} {what}: {error}", remedy=remedy) from error
