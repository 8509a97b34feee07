"""The training forward pass: one packed micro-batch in, the logprobs of its trained tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loopwright.core.packing import Packed
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.logprobs import chosen_logprobs
from loopwright.learn.samples import Tensors


def packed_logprobs(
    model: Any, rows: Sequence[Packed], data: Tensors, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the targets under the model's current weights (T8), and the entropy where they were sampled."""
    output = model(
        input_ids=data.ids[None],
        position_ids=data.positions[None],
        use_cache=False,
        logits_to_keep=data.logit_positions,
        plan=SharedPrefixPlan(rows, model.device),
    )
    logits = output.logits[0].float()
    if temperature != 1:
        logits = logits / temperature
    logprobs, entropy = chosen_logprobs(logits, data.logit_of_target, data.targets)
    return logprobs, entropy[data.logit_of_target]
