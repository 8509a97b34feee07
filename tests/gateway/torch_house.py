"""A gateway over the embedded engine with a tiny random model, which says nothing sensible without a constraint."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gateway_house import House, RecordingEngine, house
from transformers import AutoModelForCausalLM

from loopwright.engines.torch.engine import TorchEngine
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.ports import OnPart
from loopwright.types import GenerateRequest, Generation, TokenChain

CONTEXT = 8192
TOLERANCE = 1e-4


class RecordedTorchEngine(RecordingEngine):
    """Keeps what it was asked and what it answered, and lets another engine answer."""

    def __init__(self, engine: TorchEngine) -> None:
        super().__init__(("",))
        self._asked = engine

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        generation = await self._asked.generate(request, on_part)
        self.log.append((request, generation))
        return generation


@asynccontextmanager
async def torch_house(folder: Path) -> AsyncIterator[House]:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    loaded = load_model(str(folder), cache=folder)
    with ComputeThread() as compute:
        async with (
            TorchEngine(loaded, compute, max_batch=8) as engine,
            house((), engine=RecordedTorchEngine(engine), max_context=CONTEXT) as h,
        ):
            yield h


def plain_logprobs(folder: Path, chain: TokenChain) -> Any:
    """What transformers says of each token of a chain but the first."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        odds = model(torch.from_numpy(chain.ids[None].astype(np.int64))).logits[0].double().log_softmax(-1)
    return odds[:-1].gather(1, torch.from_numpy(chain.ids[1:, None].astype(np.int64)))[:, 0].numpy()


def check_trained(folder: Path, chains: Sequence[TokenChain]) -> None:
    """Every sampled token has the logprob of the unconstrained model (T8), and some do not train while others do."""
    for chain in chains:
        exact = plain_logprobs(folder, chain)
        assert exact[chain.mask[1:]] == pytest.approx(chain.logprobs[chain.mask], abs=TOLERANCE)
        assert 0 < chain.constrained_mask.sum() < chain.sampled
