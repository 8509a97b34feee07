"""The training forward pass: one packed micro-batch in, the logprobs of its targets out.

Gradients of the table of embeddings and of the head, which are most of a small model, are added to the parameters'
`.grad` as they arise; all others take autograd's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loopwright.core.packing import Packed
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.embedding import embed
from loopwright.learn.logprobs import head_logprobs
from loopwright.learn.samples import Tensors


def packed_logprobs(
    model: Any, rows: Sequence[Packed], data: Tensors, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the targets under the model's current weights (T8), and the entropy where they were sampled."""
    output = model.base_model(
        inputs_embeds=embed(model.get_input_embeddings(), data.ids[None]),
        position_ids=data.positions[None],
        use_cache=False,
        plan=SharedPrefixPlan(rows, model.device),
    )
    hidden = output.last_hidden_state[0, data.logit_positions]
    head = model.get_output_embeddings().weight
    logprobs, entropy = head_logprobs(hidden, head, data.logit_of_target, data.targets, temperature)
    return logprobs, entropy[data.logit_of_target]
