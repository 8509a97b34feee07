"""W1: an engine serves only if it computes what the learner's weights compute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from teacher import Teacher

from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import EngineError, ProofError, WeightsError
from loopwright.testing.weight_file import weight_file
from loopwright.types import NOTHING_YET, FinishReason, GenerateRequest, Generation, PauseMode, ProbeAnswer, Sampling
from loopwright.weights.proof import PROMPT_TOKENS, WeightProof

VOCABULARY = 300


def proof_of(teacher: Any, **options: Any) -> WeightProof:
    return WeightProof(teacher, VOCABULARY, **options)


async def handed_over(
    teacher: Teacher, engine: TorchEngine, folder: Path, change: Callable[[dict[str, torch.Tensor]], Any] = dict
) -> None:
    """Step the teacher, and load its weights into the engine, after `change`."""
    teacher.step()
    tensors = {name: tensor.detach().clone() for name, tensor in teacher.model.named_parameters()}
    change(tensors)
    await engine.load(teacher.version, weight_file(tensors, folder / f"w-{teacher.version}"))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_the_right_weights_pass_and_their_difference_is_a_metric(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path, temperature: float
) -> None:
    proof = proof_of(teacher, temperature=temperature)
    async with proof.of(1) as metrics:
        await handed_over(teacher, engine, tmp_path)
        await proof("0", engine, 1)
    assert metrics.keys() == {"engine/0/proof_max"}
    assert 0 < metrics["engine/0/proof_max"] < 5e-5


def one_layer_is_old(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"].div_(1.01)


def one_row_is_off(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.self_attn.v_proj.weight"][0].mul_(1.2)


def one_is_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"][0] = float("nan")


@pytest.mark.parametrize("change", [one_layer_is_old, one_row_is_off])
async def test_wrong_weights_are_named_by_engine_version_and_token(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path, change: Callable[..., None]
) -> None:
    proof = proof_of(teacher)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path, change)
        with pytest.raises(ProofError, match="engine 3 does not serve the weights of version 1") as caught:
            await proof("3", engine, 1)
    assert caught.value.facts["place"] >= 1


async def test_weights_that_compute_nothing_are_an_error(teacher: Teacher, engine: TorchEngine, tmp_path: Path) -> None:
    proof = proof_of(teacher)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path, one_is_nan)
        with pytest.raises(EngineError):
            await proof("3", engine, 1)


async def test_an_update_that_was_only_said_to_be_done_is_caught(teacher: Teacher, engine: TorchEngine) -> None:
    proof = proof_of(teacher)
    teacher.step()
    async with proof.of(1):
        await engine.load(1)
        with pytest.raises(ProofError):
            await proof("0", engine, 1)


class Otherwise:
    """An engine that answers a probe in another way than it computes."""

    def __init__(self, engine: TorchEngine, change: Callable[[ProbeAnswer], ProbeAnswer]) -> None:
        self._engine = engine
        self._change = change

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        return self._change(await self._engine.probe(request))


def sampled_off(answer: ProbeAnswer) -> ProbeAnswer:
    logprobs = tuple(logprob - 0.001 for logprob in answer.sampled.logprobs)
    return replace(answer, sampled=replace(answer.sampled, logprobs=logprobs))


def prompt_off(answer: ProbeAnswer) -> ProbeAnswer:
    return replace(answer, prompt_logprobs=(*answer.prompt_logprobs[:-1], answer.prompt_logprobs[-1] + 0.001))


def one_missing(answer: ProbeAnswer) -> ProbeAnswer:
    return replace(answer, prompt_logprobs=answer.prompt_logprobs[:-1])


def nothing_sampled(answer: ProbeAnswer) -> ProbeAnswer:
    return replace(answer, sampled=NOTHING_YET)


def not_a_number(answer: ProbeAnswer) -> ProbeAnswer:
    return replace(answer, prompt_logprobs=(float("nan"), *answer.prompt_logprobs[1:]))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("change", [sampled_off, prompt_off, one_missing, nothing_sampled, not_a_number])
async def test_each_part_of_the_answer_is_compared(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path, change: Callable[[ProbeAnswer], ProbeAnswer], late: bool
) -> None:
    """What is sampled by stale keys, or by an old head, is off while the prompt's logprobs are right."""
    proof = proof_of(teacher)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path)
        if not late:
            with pytest.raises(ProofError):
                await proof("0", Otherwise(engine, change), 1)  # type: ignore[arg-type]
    if late:
        teacher.step()
        await proof("0", engine, 1)
        with pytest.raises(ProofError):
            await proof("0", Otherwise(engine, change), 1)  # type: ignore[arg-type]


async def test_an_engine_that_comes_back_late_is_proven_though_the_learner_has_moved_on(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    proof = proof_of(teacher, temperature=0.7)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path)
    before = weight_file(dict(teacher.model.named_parameters()), tmp_path / "before")
    teacher.step()
    await proof("0", engine, 1)
    await engine.load(1, weight_file(dict(teacher.model.named_parameters()), tmp_path / "newer"))
    with pytest.raises(ProofError, match="version 1"):
        await proof("0", engine, 1)
    await engine.load(1, before)
    await proof("0", engine, 1)


async def test_a_paused_engine_is_proven_while_its_live_sequences_stand_still(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    heard: list[Any] = []
    request = GenerateRequest("live", (5, 6, 7), Sampling(max_new_tokens=200), part_tokens=1)
    live = asyncio.create_task(engine.generate(request, heard.append))
    async with asyncio.timeout(20):
        while len(heard) < 3:
            await asyncio.sleep(0.001)
        await engine.pause(PauseMode.KEEP)
        sampled = len(heard)
        proof = proof_of(teacher)
        async with proof.of(1):
            await handed_over(teacher, engine, tmp_path)
            await proof("0", engine, 1)
        assert len(heard) == sampled
        await engine.resume()
        generation = await live
    assert set(generation.versions) == {0, 1}
    scored = await teacher.logprobs((*request.prompt_ids, *generation.ids))
    expected = scored[len(request.prompt_ids) - 1 :]
    new = generation.versions.index(1)
    assert generation.logprobs[new:] == pytest.approx(expected[new:], abs=1e-4)


async def test_a_badly_conditioned_prompt_is_no_alarm_and_weights_that_are_wrong_fail_on_all(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    asked: list[tuple[int, ...]] = []

    def off_at_first(answer: ProbeAnswer) -> ProbeAnswer:
        asked.append(answer.sampled.ids)
        return prompt_off(answer) if len(asked) < 3 else answer

    proof = proof_of(teacher)
    async with proof.of(1) as metrics:
        await handed_over(teacher, engine, tmp_path)
        await proof("0", Otherwise(engine, off_at_first), 1)  # type: ignore[arg-type]
    assert len(asked) == 3
    assert metrics["engine/0/proof_max"] < 5e-5


async def test_each_version_has_prompts_of_its_own(teacher: Teacher) -> None:
    asked: list[Any] = []

    class Listening:
        async def probe(self, request: GenerateRequest) -> ProbeAnswer:
            asked.append(request.prompt_ids)
            raise ProofError("heard", remedy="none")

    proof = proof_of(teacher)
    for version in (1, 2):
        async with proof.of(version):
            with pytest.raises(ProofError):
                await proof("0", Listening(), version)  # type: ignore[arg-type]
    assert len(set(asked)) == 6, "three prompts for each of two versions"
    assert all(0 <= token < VOCABULARY for prompt in asked for token in prompt)


class Wrong:
    """An engine that computes something else."""

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        sampled = Generation((1,) * 3, (-1.0,) * 3, (1,) * 3, FinishReason.LENGTH)
        return ProbeAnswer((-1.0,) * (len(request.prompt_ids) - 1), sampled)


async def test_an_engine_of_the_version_before_is_proven_while_the_next_one_is_published(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    """It comes back just then, and serves that version if the new one is refused."""
    proof = proof_of(teacher, temperature=0.7)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path)
    teacher.step()

    async def refused() -> None:
        async with proof.of(2):
            await proof("0", engine, 1)
            with pytest.raises(ProofError, match="version 1"):
                await proof("1", Wrong(), 1)  # type: ignore[arg-type]
            raise WeightsError("every engine refused them", remedy="none")

    with pytest.raises(WeightsError):
        await refused()
    await proof("0", engine, 1)
    with pytest.raises(ProofError, match="version 1"):
        await proof("1", Wrong(), 1)  # type: ignore[arg-type]
    with pytest.raises(ProofError, match="version 2"):
        await proof("1", Wrong(), 2)  # type: ignore[arg-type]


async def test_a_proof_under_way_when_the_next_version_is_published_is_still_of_its_own(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    proof = proof_of(teacher)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path)
    probing, goes_on, asked = asyncio.Event(), asyncio.Event(), []

    class Waiting:
        async def probe(self, request: GenerateRequest) -> ProbeAnswer:
            asked.append(request)
            probing.set()
            await goes_on.wait()
            return await engine.probe(request)

    late = asyncio.create_task(proof("0", Waiting(), 1))  # type: ignore[arg-type]
    await probing.wait()
    teacher.step()
    async with proof.of(2) as metrics:
        goes_on.set()
        await late
    assert len(asked) == 2, "the first prompt was good enough"
    assert metrics == {}


async def test_an_engine_that_comes_while_the_learner_is_asked_is_not_waved_through(teacher: Teacher) -> None:
    """All engines were lost in the update, so nobody has asked the learner yet."""
    asking, goes_on = asyncio.Event(), asyncio.Event()

    class Slow:
        async def logprobs(self, ids: Any, temperature: float = 1.0) -> tuple[float, ...]:
            asking.set()
            await goes_on.wait()
            return await teacher.logprobs(ids, temperature)

    proof = proof_of(Slow())

    async def publish() -> None:
        async with proof.of(1):
            pass

    publishing = asyncio.create_task(publish())
    await asking.wait()
    late = asyncio.create_task(proof("0", Wrong(), 1))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    goes_on.set()
    await publishing
    with pytest.raises(ProofError):
        await late


async def test_an_infinite_logprob_does_not_make_everything_right(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    """An engine that comes back late is compared with its own scores too, and these may be anything."""
    proof = proof_of(teacher)
    async with proof.of(1):
        await handed_over(teacher, engine, tmp_path)

    def off(answer: ProbeAnswer) -> ProbeAnswer:
        prompt = PROMPT_TOKENS - 1
        scored = tuple(logprob + 1 for logprob in answer.prompt_logprobs[:prompt])
        return replace(answer, prompt_logprobs=scored + (float("-inf"),) * (len(answer.prompt_logprobs) - prompt))

    with pytest.raises(ProofError):
        await proof("0", Otherwise(engine, off), 1)  # type: ignore[arg-type]
