"""What every engine that computes promises of its weights: after an update it computes with the new ones and nothing
else. Subclass `WeightsContract`, and give it a `reference` and an `engine` that was started with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from loopwright.errors import LoopwrightError
from loopwright.ports import PauseMode, StreamingEngine
from loopwright.testing.weight_file import weight_file
from loopwright.types import GenerateRequest, Generation, Sampling, WeightFile

NOISE = 0.02
"""How far an update moves the weights, in shares of their spread."""
CACHED = 100
"""A prompt that fills several blocks of every prefix cache."""


class ReferenceModel:
    """The model by transformers, whose weights the engine gets."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._seed = 0

    @torch.no_grad()
    def move(self) -> None:
        self._seed += 1
        random = torch.Generator().manual_seed(self._seed)
        for parameter in self._model.parameters():
            if parameter.dim() > 1:
                parameter += NOISE * parameter.std() * torch.randn(parameter.shape, generator=random)

    def write(self, file: Path) -> WeightFile:
        return weight_file(dict(self._model.named_parameters()), file)

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        logits = self._model(torch.tensor([ids])).logits[0, :-1].float() / temperature
        found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        return found

    def of(self, prompt: Sequence[int], sampled: Generation, temperature: float = 1.0) -> list[float]:
        return self.logprobs([*prompt, *sampled.ids], temperature)[len(prompt) - 1 :]


async def updated(engine: StreamingEngine, version: int, file: WeightFile) -> None:
    """As the controller does it at a sync."""
    await engine.pause(PauseMode.ABORT)
    await engine.load(version, file)
    await engine.resume()


class WeightsContract:
    """`close` is how far a logprob may be from the model's own, computed by other kernels in another order."""

    close = 5e-4
    first_token = 5
    """Prompts are made of tokens from this one on."""

    def prompt(self, tokens: int) -> tuple[int, ...]:
        return tuple(range(self.first_token, self.first_token + tokens))

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    async def test_tokens_after_an_update_are_those_of_the_new_weights(
        self, engine: StreamingEngine, reference: ReferenceModel, tmp_path: Path, temperature: float
    ) -> None:
        prompt = self.prompt(12)
        sampling = Sampling(temperature=temperature, max_new_tokens=12, seed=3)
        for version in (1, 2):
            reference.move()
            await updated(engine, version, reference.write(tmp_path / f"w-{version}"))
            sampled = await engine.generate(GenerateRequest(f"a/{version}", prompt, sampling))
            assert sampled.versions == (version,) * len(sampled.ids)
            assert sampled.logprobs == pytest.approx(reference.of(prompt, sampled, temperature), abs=self.close)

    async def test_no_key_of_earlier_weights_is_read(
        self, engine: StreamingEngine, reference: ReferenceModel, tmp_path: Path
    ) -> None:
        prompt, greedy = self.prompt(CACHED), Sampling(temperature=0.0, max_new_tokens=4)
        for version in (1, 2):
            reference.move()
            await updated(engine, version, reference.write(tmp_path / f"w-{version}"))
            for number in range(2):
                sampled = await engine.generate(GenerateRequest(f"a/{version}.{number}", prompt, greedy))
                assert sampled.logprobs == pytest.approx(reference.of(prompt, sampled), abs=self.close)

    async def test_a_probe_is_answered_while_paused_with_the_weights_that_were_just_loaded(
        self, engine: StreamingEngine, reference: ReferenceModel, tmp_path: Path
    ) -> None:
        reference.move()
        prompt = self.prompt(10)
        await engine.pause(PauseMode.ABORT)
        await engine.load(1, reference.write(tmp_path / "w"))
        answer = await engine.probe(GenerateRequest("probe", prompt, Sampling(temperature=0.7, max_new_tokens=3)))
        await engine.resume()
        assert answer.prompt_logprobs == pytest.approx(reference.logprobs(prompt), abs=self.close)
        assert len(answer.sampled.ids) == 3
        assert answer.sampled.logprobs == pytest.approx(reference.of(prompt, answer.sampled, 0.7), abs=self.close)

    @pytest.mark.parametrize("harm", ["damaged", "gone", "another shape", "a tensor less"])
    async def test_weights_that_cannot_be_used_are_refused_and_the_old_ones_serve(
        self, engine: StreamingEngine, reference: ReferenceModel, tmp_path: Path, harm: str
    ) -> None:
        reference.move()
        await updated(engine, 1, reference.write(tmp_path / "w-1"))
        file = tmp_path / "w-2"
        tensors = {name: torch.zeros_like(tensor) for name, tensor in reference._model.named_parameters()}
        name = next(reversed(tensors))
        if harm == "another shape":
            tensors[name] = tensors[name][:-1].clone()
        if harm == "a tensor less":
            del tensors[name]
        manifest = weight_file(tensors, file)
        if harm == "damaged":
            content = bytearray(file.read_bytes())
            content[-5] ^= 1
            file.write_bytes(content)
        if harm == "gone":
            file.unlink()
        await engine.pause(PauseMode.ABORT)
        with pytest.raises(LoopwrightError):
            await engine.load(2, manifest)
        await engine.resume()
        prompt = self.prompt(12)
        sampled = await engine.generate(GenerateRequest("a/0", prompt, Sampling(max_new_tokens=4)))
        assert (engine.version, sampled.versions) == (1, (1,) * 4)
        assert sampled.logprobs == pytest.approx(reference.of(prompt, sampled), abs=self.close)
