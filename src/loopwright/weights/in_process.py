"""Learner and engine in one process. Publishing copies nothing if all weights are trained, and merges adapters if these
are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from loopwright.models.adapters import AdaptedParameters
from loopwright.models.load import LoadedModel
from loopwright.ports import Engine, Learner
from loopwright.types import TensorSpec
from loopwright.weights.proof import WeightProof
from loopwright.weights.volume import BYTES


class SharedWeights:
    """The learner has already changed the engine's parameters, so only the new version is reported."""

    def __init__(self, engine: Engine, proof: WeightProof) -> None:
        self._engine = engine
        self._proof = proof

    async def publish(self, version: int) -> Mapping[str, float]:
        async with self._proof.of(version) as differences:
            await self._engine.load(version)
        return {**differences, BYTES: 0}


class MergedAdapters:
    """The engine computes with `loaded`, whose weights with adapters are its own. `base` are the learner's. The engine
    must be paused, or not in use yet."""

    def __init__(
        self,
        learner: Learner,
        engine: Engine,
        loaded: LoadedModel,
        base: Mapping[str, torch.Tensor],
        proof: WeightProof,
    ) -> None:
        self._learner = learner
        self._engine = engine
        self._parameters = AdaptedParameters(dict(loaded.model.named_parameters()), base)
        self._proof = proof

    async def publish(self, version: int) -> Mapping[str, float]:
        sink = _MergingSink(self._parameters)
        await self._learner.publish(sink)
        async with self._proof.of(version) as differences:
            await self._engine.load(version)
        return {**differences, BYTES: sink.bytes}


class _MergingSink:
    """A `WeightSink` that merges all adapters when the last one has come, in the learner's thread."""

    def __init__(self, parameters: AdaptedParameters) -> None:
        self._parameters = parameters
        self._missing: set[str] = set()
        self._adapters: dict[str, torch.Tensor] = {}
        self.bytes = 0

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        self._missing = set(tensors)

    def take(self, bucket: Mapping[str, Any]) -> None:
        self._adapters |= bucket
        self._missing -= bucket.keys()
        self.bytes += sum(tensor.nbytes for tensor in bucket.values())
        if not self._missing:
            self._parameters.check(self._adapters)
            self._parameters.merge(self._adapters)
