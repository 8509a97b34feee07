"""What the engine needs of a model: the logits of packed tokens. Every model gives them by its own modules."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from loopwright.models.attention import AttentionPlan


class PackedForward(Protocol):
    """A forward pass over one packed row of tokens, without gradients."""

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """[tokens, vocabulary] after the tokens `keep`; None means all."""
        ...

    def prepacked(self) -> PackedForward | None:
        """One that is faster for the numbers of tokens of `models.prepacked`. It computes from a copy of the parameters
        as they are at its first pass. None if nothing is gained."""
        ...


class ModuleForward:
    """The model's own forward."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def prepacked(self) -> None:
        return None

    @torch.no_grad()
    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=0 if keep is None else keep,
            plan=plan,
        )
        logits: torch.Tensor = output.logits[0]
        return logits
