"""The training forward pass: one packed micro-batch in, the logprobs of its targets out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopwright.core.packing import Packed
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.body import Body
from loopwright.learn.logprobs import head_logprobs
from loopwright.learn.samples import Tensors


def packed_logprobs(
    body: Body, rows: Sequence[Packed], data: Tensors, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the targets under the model's current weights (T8), and the entropy where they were sampled."""

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        hidden = body.hidden(data, SharedPrefixPlan(rows, data.ids.device))
        return head_logprobs(hidden, body.head, data.logit_of_target, data.targets, temperature)

    logprobs, entropy = body.run(compute)
    return logprobs, entropy[data.logit_of_target]
