"""A model without its head, for training: the hidden states of packed tokens, with their gradients.

Models that `models.recognise` accepts use the hand-written layers (`learn.layers`) on a CPU in float32. All others use
their own modules and autograd. In both cases the gradients of the embedding table and of the head, which are most of a
small model, are added to the parameters' `.grad` as soon as they are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.checkpointing import checkpoint_layers
from loopwright.learn.embedding import embed
from loopwright.learn.layers import AttentionHalf, FeedForwardHalf, PassContext, attention_half, feed_forward_half
from loopwright.learn.samples import Tensors
from loopwright.models.adapters import has_adapters
from loopwright.models.device import CPU
from loopwright.models.lean import LeanModel
from loopwright.models.load import LoadedModel
from loopwright.models.rotary import Angles

T = TypeVar("T")


class Body(Protocol):
    """Computes from the model's present parameters, so it sees every update."""

    @property
    def name(self) -> str:
        """What computes, and why it was chosen, for people."""
        ...

    @property
    def head(self) -> torch.Tensor:
        """The matrix that turns hidden states into logits, [vocabulary, features]."""
        ...

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        """The last hidden states of the tokens that predict something, `data.logit_positions`, in their order."""
        ...

    def run(self, work: Callable[[], T]) -> T:
        """Do `work`, which reads `head` and calls `hidden`, where the parameters are whole. It returns tensors."""
        ...


def body_of(loaded: LoadedModel, *, checkpointed: bool = False) -> Body:
    """The fastest body that is proven to be correct for this model. With `checkpointed`, a layer keeps only its input
    for the backward pass, and is computed again there."""
    device, dtype = loaded.model.device, loaded.model.dtype
    if has_adapters(loaded.model):
        why = "it has adapters"
    elif loaded.parts is None:
        why = f"it is a {loaded.model.config.model_type} model"
    elif device.type != CPU or dtype != torch.float32:
        why = f"the layers by hand are for a CPU and float32, and it is {str(dtype).removeprefix('torch.')} on {device}"
    else:
        return LeanBody(loaded.model, loaded.parts, checkpointed=checkpointed)
    return ModuleBody(loaded.model, why, checkpointed=checkpointed)


class ModuleBody:
    """The model's own modules."""

    def __init__(self, model: Any, why: str = "they were asked for", *, checkpointed: bool = False) -> None:
        self._model = model
        self.name = f"the model's own modules ({why})"
        if checkpointed:
            checkpoint_layers(model)

    @property
    def head(self) -> torch.Tensor:
        weight: torch.Tensor = self._model.get_output_embeddings().weight
        return weight

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        output = self._model.base_model(
            inputs_embeds=embed(self._model.get_input_embeddings(), data.ids[None]),
            position_ids=data.positions[None],
            use_cache=False,
            plan=plan,
        )
        hidden: torch.Tensor = output.last_hidden_state[0, data.logit_positions]
        return hidden

    def run(self, work: Callable[[], T]) -> T:
        return work()


class LeanBody:
    """The hand-written layers. After the attention of the last layer, only tokens that predict something are
    computed."""

    name = "layers by hand"

    def __init__(self, model: Any, parts: LeanModel, *, checkpointed: bool = False) -> None:
        base = model.base_model
        self.head: torch.Tensor = model.get_output_embeddings().weight
        self._checkpointed = checkpointed
        self._table = base.embed_tokens
        self._angles = Angles(base.rotary_emb, base.embed_tokens.weight)
        self._dim = parts.sizes.heads.dim
        self._norm = base.norm
        self._layers = [
            (_attention_half(module, layer.scaling, layer.window), _feed_forward_half(module))
            for module, layer in zip(base.layers, parts.layers, strict=True)
        ]

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        x = embed(self._table, data.ids)
        setting = PassContext(plan, *self._angles.at(data.positions), self._dim)
        again = self._checkpointed and torch.is_grad_enabled()
        for number, layer in enumerate(self._layers, start=1):
            keep = data.logit_positions if number == len(self._layers) else None
            if again:
                x = checkpoint(_both_halves, x, layer, setting, keep, use_reentrant=False, preserve_rng_state=False)
            else:
                x = _both_halves(x, layer, setting, keep)
        hidden: torch.Tensor = self._norm(x)
        return hidden

    def run(self, work: Callable[[], T]) -> T:
        return work()


def _both_halves(
    x: torch.Tensor, layer: tuple[AttentionHalf, FeedForwardHalf], setting: PassContext, keep: torch.Tensor | None
) -> torch.Tensor:
    attention, feed_forward = layer
    return feed_forward_half(attention_half(x, attention, setting, keep), feed_forward)


def _attention_half(layer: Any, scaling: float, window: int | None) -> AttentionHalf:
    attention = layer.self_attn
    return AttentionHalf(
        norm=layer.input_layernorm,
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        output=attention.o_proj,
        scaling=scaling,
        window=window,
    )


def _feed_forward_half(layer: Any) -> FeedForwardHalf:
    feed_forward = layer.mlp
    return FeedForwardHalf(
        norm=layer.post_attention_layernorm,
        gate=feed_forward.gate_proj,
        up=feed_forward.up_proj,
        down=feed_forward.down_proj,
    )
