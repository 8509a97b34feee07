"""A model without its head, for training: the hidden states of packed tokens, with their gradients.

Models that `models.recognise` accepts use the hand-written layers (`learn.layers`). All others use their own modules
and autograd. In both cases the gradients of the embedding table and of the head, which are most of a small model, are
added to the parameters' `.grad` as soon as they are computed.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.embedding import embed
from loopwright.learn.layers import AttentionHalf, FeedForwardHalf, PassContext, attention_half, feed_forward_half
from loopwright.learn.samples import Tensors
from loopwright.models.lean import LeanForward
from loopwright.models.load import LoadedModel
from loopwright.models.rotary import Angles


class Body(Protocol):
    """Computes from the model's present parameters, so it sees every update."""

    @property
    def head(self) -> torch.Tensor:
        """The matrix that turns hidden states into logits, [vocabulary, features]."""
        ...

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        """The last hidden states of the tokens that predict something, `data.logit_positions`, in their order."""
        ...


def body_of(loaded: LoadedModel) -> Body:
    """The fastest body that is proven to be correct for this model."""
    if isinstance(loaded.forward, LeanForward):
        return LeanBody(loaded.model, loaded.forward)
    return ModuleBody(loaded.model)


class ModuleBody:
    """The model's own modules."""

    def __init__(self, model: Any) -> None:
        self._model = model

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


class LeanBody:
    """The hand-written layers. After the attention of the last layer, only tokens that predict something are
    computed."""

    def __init__(self, model: Any, lean: LeanForward) -> None:
        base = model.base_model
        self.head: torch.Tensor = model.get_output_embeddings().weight
        self._table = base.embed_tokens
        self._angles = Angles(base.rotary_emb, base.embed_tokens.weight)
        self._dim = lean.model.sizes.heads.dim
        self._norm = base.norm
        self._layers = [
            (_attention_half(module, layer.scaling, layer.window), _feed_forward_half(module))
            for module, layer in zip(base.layers, lean.model.layers, strict=True)
        ]

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        x = embed(self._table, data.ids)
        setting = PassContext(plan, *self._angles.at(data.positions), self._dim)
        for number, (attention, feed_forward) in enumerate(self._layers, start=1):
            keep = data.logit_positions if number == len(self._layers) else None
            x = feed_forward_half(attention_half(x, attention, setting, keep), feed_forward)
        hidden: torch.Tensor = self._norm(x)
        return hidden


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
