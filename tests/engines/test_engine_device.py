"""The embedded engine on another device than the CPU: what it samples, and what it gives back for training."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import DEVICE, Gpu, MixedDevicesError, NoDeviceForgotten

from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.choose import SMALL, Chooser
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.torch.forward import Forward
from loopwright.engines.torch.grammar import Grammars
from loopwright.engines.torch.sequence import Sequence
from loopwright.errors import EngineError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.proof import proven
from loopwright.types import Constraint, GenerateRequest, Generation, GrammarKind, PauseMode, Sampling


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with Gpu() as entered:
        yield entered


def batch_on(device: str, folder: Path) -> EngineBatch:
    loaded = load_model(str(folder), cache=folder, device=device, native=False)
    return EngineBatch(loaded, max_batch=4, cache_tokens=500)


def asking(number: int, tokens: int = 9) -> GenerateRequest:
    """Short prompts, prompts that are shared, and long ones; several temperatures and truncations."""
    prompt = tuple(range(5, 15 + number % 3 * 90))
    temperature, top_p = (1.0, 0.7, 0.0)[number % 3], 0.9 if number == 4 else 1.0
    sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=tokens, seed=number)
    return GenerateRequest(str(number), prompt, sampling)


def sampled(batch: EngineBatch) -> list[Generation]:
    """Eight answers, more than fit at once, the last ones after new weights."""
    sequences = [batch.submit(asking(number)) for number in range(8)]
    for _ in range(6):
        batch.step()
    batch.reload(1)
    while not batch.idle:
        batch.step()
    return [sequence.generation() for sequence in sequences]


@pytest.mark.parametrize("folder", ["tiny_llama_folder", "tiny_sliding_folder"])
def test_it_samples_what_the_cpu_samples(folder: str, gpu: Gpu, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(folder)
    on_cpu, batch = batch_on("cpu", path), batch_on(DEVICE, path)
    expected, before = sampled(on_cpu), gpu.operations
    with NoDeviceForgotten():
        found = sampled(batch)
    assert gpu.operations > before + 100, "it was not computed there"
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.ids == theirs.ids
        assert ours.versions == theirs.versions
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    wanted = on_cpu.probe(asking(1)).prompt_logprobs
    with NoDeviceForgotten():
        probed = batch.probe(asking(1)).prompt_logprobs
    assert probed == pytest.approx(wanted, abs=1e-4)


def in_a_form(batch: EngineBatch) -> list[Generation]:
    """Two answers that keep a grammar, and tell which other tokens were likely, and one that is free."""
    loaded = batch._loaded
    grammars = Grammars(loaded.tokenizer, loaded.model.config.vocab_size)
    form = Constraint(GrammarKind.JSON_SCHEMA, '{"type": "integer"}')
    sequences = [batch.submit(asking(0))]
    for seed in range(2):
        sampling = Sampling(max_new_tokens=6, temperature=0.7, seed=seed)
        request = GenerateRequest(str(seed), (5, 6, 7), sampling, constraint=form, alternatives=3)
        sequences.append(batch.submit(request, grammars.state(request, form)))
    while not batch.idle:
        batch.step()
    return [sequence.generation() for sequence in sequences]


def test_it_keeps_a_grammar_as_the_cpu_does(tiny_llama_folder: Path, gpu: Gpu) -> None:
    expected, batch = in_a_form(batch_on("cpu", tiny_llama_folder)), batch_on(DEVICE, tiny_llama_folder)
    with NoDeviceForgotten():
        found = in_a_form(batch)
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.constrained for one in found] == [one.constrained for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert [[i for i, _ in row] for row in ours.alternatives] == [
            [i for i, _ in row] for row in theirs.alternatives
        ]


def test_it_chooses_from_a_large_vocabulary_as_the_cpu_does(gpu: Gpu) -> None:
    logits = torch.randn(3, 3 * SMALL + 5, generator=torch.Generator().manual_seed(0))
    samplings = [Sampling(temperature=t, top_p=p, seed=7) for t, p in ((1.0, 1.0), (0.7, 0.9), (0.0, 1.0))]
    found = []
    with NoDeviceForgotten():
        for device in (torch.device("cpu"), torch.device(DEVICE)):
            chooser = Chooser(samplings, [3, 4, 5], device)
            first, _ = chooser.choose(logits.to(device))
            found.append((first, chooser.only([2, 0]).choose(logits[[2, 0]].to(device))[0]))
    assert found[0] == found[1]


def test_no_call_of_torch_passes_through_python(
    tiny_llama_folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default device is a mode, which makes a small kernel's call three times as long."""
    modes, advance = list[int](), Forward.advance

    def counted(*args: Any) -> Any:
        modes.append(torch._C._len_torch_function_stack())
        return advance(*args)

    monkeypatch.setattr(Forward, "advance", counted)
    batch = batch_on(DEVICE, tiny_llama_folder)
    finished(batch, batch.submit(asking(0)))
    assert set(modes) == {0}


def test_a_mask_on_the_wrong_device_is_caught(
    tiny_llama_folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_on(DEVICE, tiny_llama_folder)
    cpu = torch.device("cpu")
    monkeypatch.setattr(
        "loopwright.engines.torch.forward.tensor_of", lambda ids, _: torch.tensor(list(ids), device=cpu)
    )
    batch.submit(asking(0))
    with pytest.raises(MixedDevicesError):
        batch.step()


def held(batch: EngineBatch) -> int:
    """The bytes of all keys and values."""
    forward = batch._forward
    caches = forward._whole, forward._own, forward._prompts.rows
    layers = [x for cache in caches for arena in cache._arenas.values() for x in (*arena.keys, *arena.values)]
    return sum(x.nbytes for x in layers if x is not None)


def finished(batch: EngineBatch, sequence: Sequence) -> Generation:
    while sequence.finish is None:
        batch.step()
    return sequence.generation()


def test_keys_and_values_are_given_back_while_it_rests(tiny_llama_folder: Path, gpu: Gpu) -> None:
    batch = batch_on(DEVICE, tiny_llama_folder)
    empty = gpu.used
    expected = [finished(batch, batch.submit(asking(number))) for number in range(3)]
    assert held(batch) > 0
    assert gpu.used > empty + held(batch) / 2
    batch.rest()
    assert held(batch) == 0
    assert gpu.used <= empty + 20_000, "random numbers and views may stay"
    assert [finished(batch, batch.submit(asking(number))) for number in range(3)] == expected


def test_what_is_live_keeps_its_keys(tiny_llama_folder: Path, gpu: Gpu) -> None:
    """With `in_flight: keep`, requests go on after the weights have changed."""
    batch = batch_on(DEVICE, tiny_llama_folder)
    alone = finished(batch, batch.submit(asking(1)))
    sequence = batch.submit(asking(1))
    batch.step()
    batch.rest()
    assert held(batch) > 0
    assert finished(batch, sequence).ids == alone.ids


def test_a_request_that_waits_shares_a_prompt_that_was_given_back(tiny_llama_folder: Path, gpu: Gpu) -> None:
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder, device=DEVICE, native=False)
    batch = EngineBatch(loaded, max_batch=1, cache_tokens=500)
    first, waiting = batch.submit(asking(1)), batch.submit(asking(1))
    while first.finish is None:
        batch.step(admit=not batch.live)
    assert waiting in batch.waiting
    batch.rest()
    assert finished(batch, waiting).ids == first.generation().ids


def test_a_cpu_keeps_its_pages(tiny_llama_folder: Path) -> None:
    batch = batch_on("cpu", tiny_llama_folder)
    finished(batch, batch.submit(asking(1)))
    batch.rest()
    assert held(batch) > 0


def in_groups(loaded: LoadedModel) -> EngineBatch:
    """Groups of siblings. Some answers end early, and the others, of several groups, in the same step. Meanwhile rows
    have moved, so those of the prompts are not in the order of those of the answers."""
    batch = EngineBatch(loaded, max_batch=64, cache_tokens=500)
    for group, length in enumerate((20, 24, 90, 20, 22)):
        prompt = tuple(range(5 + group, 5 + group + length))
        for member in range(3):
            early = group == 0 or (group + member) % 3 == 0
            tokens = 3 + 2 * group + member if early else 20
            sampling = Sampling(max_new_tokens=tokens, seed=10 * group + member)
            batch.submit(GenerateRequest(f"{group}.{member}", prompt, sampling))
    return batch


@pytest.mark.parametrize("device", [DEVICE, "cpu"])
def test_groups_that_end_at_different_times_are_given_back(tiny_llama_folder: Path, gpu: Gpu, device: str) -> None:
    """The last rows of an arena move into the places of those that are freed."""
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder, device=device, native=False)
    batch = in_groups(loaded)
    batch._gives_back = True
    while not batch.idle:
        batch.step()
    assert held(batch) > 0
    batch.rest()
    assert held(batch) == 0


async def test_a_rest_that_fails_ends_the_pause_and_every_request(
    tiny_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)

    def fail(batch: EngineBatch) -> None:
        raise RuntimeError("nothing can be freed")

    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=1) as engine:
            calls = [asyncio.create_task(engine.generate(asking(0, tokens=200))) for _ in range(2)]
            while not engine._batch.live:
                await asyncio.sleep(0.001)
            with monkeypatch.context() as broken:
                broken.setattr(EngineBatch, "rest", fail)
                async with asyncio.timeout(20):
                    with pytest.raises(EngineError, match="nothing can be freed"):
                        await engine.pause(PauseMode.DRAIN)
                    drained, waited = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(drained, Generation)
            assert isinstance(waited, EngineError)
            await engine.resume()
            assert len((await engine.generate(asking(0))).ids) == 9


async def test_too_little_memory_says_which_setting_halves_it(tiny_llama_folder: Path) -> None:
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)

    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB")

    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=8, cache_tokens=100) as engine:
            engine._batch._forward.advance = fail  # type: ignore[assignment]
            with pytest.raises(EngineError, match=r"out of memory on the cpu .* 1 requests .*max_batch 8") as caught:
                await engine.generate(asking(1))
            await engine.pause(PauseMode.ABORT)
    assert "set rollout.engine.max_batch to 4, which halves" in caught.value.remedy


def test_a_model_is_proven_on_its_device(tiny_sliding_folder: Path, gpu: Gpu) -> None:
    """The proof asks the masks, which have tensors of the model's device."""
    loaded: LoadedModel = load_model(str(tiny_sliding_folder), cache=tiny_sliding_folder, device=DEVICE)
    before = gpu.operations
    proven(loaded.model, loaded.max_context)
    assert gpu.operations > before
