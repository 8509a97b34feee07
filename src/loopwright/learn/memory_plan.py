"""What memory training needs, found out by a step on a model without weights (`models.shapes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from loopwright.core.packing import Packed, micro_batches
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.checkpointing import layers_of
from loopwright.learn.logprobs import head_memory
from loopwright.learn.master import FLOAT32, MasterWeights
from loopwright.learn.room import MOMENT_BYTES
from loopwright.learn.samples import tensors_of
from loopwright.learn.sft import Example
from loopwright.learn.trained import Trained
from loopwright.models.device import CPU
from loopwright.models.live_memory import LiveMemory
from loopwright.models.shapes import ModelShape

AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class TrainedState:
    """The bytes that a learner keeps from its first step on. `masters` are the float32 weights of a model in half
    precision."""

    weights: int
    masters: int
    gradients: int
    moments: int

    @classmethod
    def of(cls, trained: Mapping[str, torch.Tensor], weights: int) -> TrainedState:
        """The state if these parameters are trained, in a model whose weights take so many bytes."""
        numbers = sum(p.numel() for p in trained.values())
        return cls(
            weights=weights,
            masters=MasterWeights.bytes_of(trained),
            gradients=FLOAT32 * numbers,
            moments=MOMENT_BYTES * numbers,
        )

    @classmethod
    def on_each_of(cls, ranks: int, trained: Mapping[str, torch.Tensor], shape: ModelShape) -> TrainedState:
        """What each of so many ranks keeps if it trains these parameters. All its weights are float32, in which masters
        are too."""
        numbers = sum(p.numel() for p in trained.values())
        # Adapters are beside the model's own parameters.
        inside = {id(p) for p in shape.parameters.values()}
        beside = sum(p.numel() for p in trained.values() if id(p) not in inside)
        weights = beside + sum(p.numel() for p in shape.parameters.values())
        return cls(
            -(-FLOAT32 * weights // ranks), 0, -(-FLOAT32 * numbers // ranks), -(-MOMENT_BYTES * numbers // ranks)
        )


def gathered_memory(shape: ModelShape, *, with_gradients: bool) -> int:
    """What of a sharded model is whole at the same time: the parameters outside of its layers, and those of two layers,
    one of which comes while the other computes; and their gradients, if they have some. Adapters are small beside them.
    """
    layers = layers_of(shape.loaded.model)
    largest = sum(sorted(sum(p.nbytes for p in layer.parameters()) for layer in layers)[-AT_ONCE:])
    inside = sum(p.nbytes for layer in layers for p in layer.parameters())
    return (2 if with_gradients else 1) * (shape.size - inside + largest)


@dataclass(frozen=True, slots=True)
class StepShape:
    """The rollouts of a mini-batch: `groups` of `samples` answers of `answer` tokens each, after prompts of `prompt`
    tokens. All groups are as large as they can be."""

    groups: int
    samples: int
    prompt: int
    answer: int

    def micro_batches(self, max_tokens: int) -> list[list[Packed]]:
        rests = (self.answer - 1,) * self.samples
        rows = [
            Packed(self.prompt, tuple(range(group * self.samples, (group + 1) * self.samples)), rests)
            for group in range(self.groups)
        ]
        return micro_batches(rows, max_tokens)

    @property
    def chain(self) -> int:
        """The tokens of the longest chain that a forward pass computes."""
        return self.prompt + self.answer - 1


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The tokens of a step's largest micro-batch and of its longest chain, and the bytes that a step takes at most: its
    gradients, activations and logits."""

    tokens: int
    chain: int
    peak: int


def step_memory(
    shape: ModelShape,
    trained: Trained,
    step: StepShape,
    *,
    micro_batch_tokens: int,
    checkpointed: bool,
    examples: StepShape | None = None,
    device_type: str = CPU,
    sharded: bool = False,
) -> StepMemory:
    """Compute a micro-batch without numbers, and count what lives. `trained` is made of the shape, which can be used
    for one step only, and may have no device: `device_type` is that of the run. `examples` are those to imitate, which
    have micro-batches of their own. The gradients of a model that is `sharded` leave as soon as they are there, and do
    not count."""
    batches = [(rows, made) for made in (step, examples) if made for rows in made.micro_batches(micro_batch_tokens)]
    rows, largest = max(batches, key=lambda batch: _tokens(batch[0]))
    device = shape.loaded.model.device
    example = Example.of([0] * largest.prompt, [0] * largest.answer)
    body = trained.body(checkpointed=checkpointed)
    weights = MasterWeights(trained.parameters)
    for parameter in trained.parameters.values() if sharded else ():
        parameter.register_post_accumulate_grad_hook(_forget)  # type: ignore[no-untyped-call]
    memory = LiveMemory()
    with memory:
        if len(batches) > 1 and not sharded:
            # The gradients of the micro-batches before it.
            for weight in weights.named.values():
                weight.grad = torch.empty_like(weight)
        data = tensors_of(rows, [example] * (largest.groups * largest.samples), device)
        hidden = body.hidden(data, SharedPrefixPlan(rows, device))
        head = body.head
        memory.peak = max(memory.peak, memory.used + head_memory(len(hidden), head, device_type))
        if head.requires_grad and head.grad is None and not sharded:
            head.grad = torch.empty_like(head)
        hidden.backward(torch.empty_like(hidden))  # type: ignore[no-untyped-call]
        del hidden, data
        weights.gather_gradients()
    return StepMemory(_tokens(rows), largest.chain, memory.peak)


def _tokens(rows: Sequence[Packed]) -> int:
    return sum(row.tokens for row in rows)


def _forget(parameter: torch.Tensor) -> None:
    parameter.grad = None
