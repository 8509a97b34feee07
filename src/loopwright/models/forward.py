"""What the engine needs from a model: the logits of packed tokens. Every model can compute them with its own
modules."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from loopwright.models.attention import AttentionPlan
from loopwright.models.native.step import NativeStep


class PackedForward(Protocol):
    """A forward pass over one packed row of tokens, without gradients."""

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """The logits [tokens, vocabulary] after the tokens in `keep`. None means all tokens."""
        ...

    def native(self) -> NativeStep | None:
        """Decode steps in C, if they are available for this model on this machine. They use a copy of the weights, made
        at the first step."""
        ...


class ModuleForward:
    """The model's own forward."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def native(self) -> None:
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
