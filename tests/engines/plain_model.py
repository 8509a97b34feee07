"""What transformers itself computes: the measure of every engine test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from loopwright.engines.torch.choose import uniforms
from loopwright.types import GenerateRequest, Sampling

TOLERANCE = 1e-4

Weights = Mapping[str, torch.Tensor]


def weights_of(model: Any, version: int) -> Weights:
    """Version 0 is the model as it is; every other one differs in all of its parameters."""
    generator = torch.Generator().manual_seed(version)
    return {
        name: parameter.detach().clone()
        if version == 0
        else parameter.detach() + 0.1 * torch.randn(parameter.shape, generator=generator)
        for name, parameter in model.named_parameters()
    }


def put(model: Any, weights: Weights) -> None:
    """Change a model's parameters in place, as a learner does."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


class PlainModel:
    """The model with transformers' own attention, under several versions of its weights."""

    def __init__(self, folder: Path, versions: int = 1) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self.versions = [weights_of(self.model, version) for version in range(versions)]

    @torch.no_grad()
    def logits(self, version: int, streams: Sequence[Sequence[int]]) -> torch.Tensor:
        """[streams, tokens, vocabulary]. Padding on the right changes nothing to its left."""
        put(self.model, self.versions[version])
        longest = max(map(len, streams))
        padded = torch.tensor([[*stream, *[0] * (longest - len(stream))] for stream in streams])
        logits: torch.Tensor = self.model(padded, use_cache=False).logits
        return logits.double()

    def check(self, samples: Iterable[Sample]) -> None:
        """Every token was sampled as this model would have, under the weights of its version (T1, T4, T8)."""
        sampled = [sample for sample in samples if sample.ids]
        for version in sorted({version for sample in sampled for version in sample.versions}):
            concerned = [sample for sample in sampled if version in sample.versions]
            logits = self.logits(version, [sample.stream for sample in concerned])
            for sample, rows in zip(concerned, logits, strict=True):
                sample.check(version, rows)


class Sample:
    """A request and what came out."""

    def __init__(
        self, request: GenerateRequest, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        assert len(ids) == len(logprobs) == len(versions)  # T3
        self.request = request
        self.ids, self.logprobs, self.versions = tuple(ids), tuple(logprobs), tuple(versions)
        self.stream = (*request.prompt_ids, *ids)

    def check(self, version: int, logits: torch.Tensor) -> None:
        """`logits` are those after each token of the stream, under the weights of `version`."""
        sampling, before = self.request.sampling, len(self.request.prompt_ids)
        for index, (token, logprob) in enumerate(zip(self.ids, self.logprobs, strict=True)):
            if self.versions[index] == version:
                position = before + index
                row = logits[position - 1] / (sampling.temperature or 1.0)
                assert abs(float(row.log_softmax(-1)[token]) - logprob) < TOLERANCE
                _check_choice(sampling, position, token, row)


def _check_choice(sampling: Sampling, position: int, token: int, row: torch.Tensor) -> None:
    """The choice depends on these logits, the seed and the position, and so on nothing else."""
    if sampling.temperature == 0:
        assert row[token] >= row.max() - TOLERANCE
    elif sampling.top_k:
        assert row[token] >= row.topk(sampling.top_k).values[-1] - TOLERANCE
    else:
        share = row.softmax(-1)
        upto = float(share[: token + 1].sum())
        drawn = float(uniforms([sampling.seed], [position])[0, 0])
        assert upto - float(share[token]) - TOLERANCE <= drawn <= upto + TOLERANCE
