"""As much of a learner as publishing and proofs need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopwright.learn.publishing import stream_weights
from loopwright.models.load import LoadedModel
from loopwright.ports import WeightSink


class Teacher:
    """Each step moves all of its weights."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.version = 0

    def step(self) -> None:
        self.version += 1
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.01)

    async def publish(self, sink: WeightSink) -> None:
        stream_weights(dict(self.model.named_parameters()), sink)

    @torch.no_grad()
    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        """By the model's own forward, which is not how our engine and learner compute."""
        self.model.set_attn_implementation("eager")
        logits = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float() / temperature
        return tuple(logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())
