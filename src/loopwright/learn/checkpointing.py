"""Lets a model's layers keep only their input for the backward pass, and compute everything else again there.

transformers can do this too, but only in training mode, in which dropout would make training logprobs differ from
sampled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from loopwright.errors import ModelError


def checkpoint_layers(model: Any) -> None:
    """Change the model's layers. Passes without gradients are as before."""
    for layer in layers_of(model):
        layer.forward = _computed_again(layer.forward)


def layers_of(model: Any) -> nn.ModuleList:
    """The model's layers, in their order."""
    count = model.config.num_hidden_layers
    stacks = [part for part in model.base_model.children() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(stacks) != 1:
        raise ModelError(
            f"the layers of a {model.config.model_type} model are not in one list, so they cannot be computed again, "
            "or sharded over ranks",
            remedy="remove learner.checkpoint_activations and learner.ranks; a smaller "
            "learner.micro_batch_tokens needs less memory too",
        )
    return stacks[0]


def _computed_again(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return checkpointed
