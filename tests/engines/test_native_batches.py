"""Native steps compute by the weights of the version that samples, whatever happened to the others; who does not need
the copy in order to sample makes none, and nobody keeps it while others compute."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_model import PlainModel, Sample, put

from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import EngineError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.native import step as step_module
from loopwright.models.native.step import NativeStep
from loopwright.testing.weight_file import weight_file
from loopwright.types import GenerateRequest, PauseMode, Sampling

ROWS = 20


@dataclass
class World:
    loaded: LoadedModel
    plain: PlainModel
    packed: int = 0


@pytest.fixture
def world(tiny_llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    made = World(loaded, PlainModel(tiny_llama_folder, 2))
    pack = NativeStep._pack

    def counted(self: NativeStep) -> Any:
        made.packed += 1
        return pack(self)

    monkeypatch.setattr(NativeStep, "_pack", counted)
    return made


def requests(count: int, prompt: int = 5) -> list[GenerateRequest]:
    return [
        GenerateRequest(str(i), tuple(range(i + 1, i + 1 + prompt)), Sampling(max_new_tokens=3, seed=i))
        for i in range(count)
    ]


def sampled_right(world: World, batch: EngineBatch, version: int) -> None:
    sequences = [batch.submit(request) for request in requests(ROWS)]
    while not batch.idle:
        batch.step()
    world.plain.check(Sample(s.request, s.ids, s.logprobs, [version] * len(s.ids)) for s in sequences)


def test_a_new_engine_reads_the_weights_as_they_are(world: World) -> None:
    sampled_right(world, EngineBatch(world.loaded, max_batch=ROWS), 0)
    assert world.packed == 1
    put(world.loaded.model, world.plain.versions[1])
    sampled_right(world, EngineBatch(world.loaded, max_batch=ROWS), 1)


def test_an_engine_that_begins_anew_reads_them_again(world: World) -> None:
    batch = EngineBatch(world.loaded, max_batch=ROWS)
    sampled_right(world, batch, 0)
    put(world.loaded.model, world.plain.versions[1])
    batch.reset()
    sampled_right(world, batch, 1)


def test_prompts_pack_nothing(world: World) -> None:
    batch = EngineBatch(world.loaded, max_batch=ROWS)
    batch.submit(requests(1, prompt=ROWS)[0])
    batch.step()
    assert not world.packed


async def test_after_a_load_that_failed_half_way_all_batches_see_the_same_weights(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = dict(world.plain.versions[1])
    unfit = next(reversed(weights))

    class Unreadable:
        shape = weights[unfit].shape

    file = weight_file(weights, tmp_path / "w")
    half = {**weights, unfit: Unreadable()}
    monkeypatch.setattr("loopwright.engines.torch.engine.read_weights", lambda manifest: half)
    with ComputeThread() as compute:
        async with TorchEngine(world.loaded, compute, max_batch=ROWS) as engine:
            await _sample(engine)
            before = world.packed
            with pytest.raises((EngineError, TypeError)):
                await engine.load(1, file)
            await _sample(engine)
    assert (before, world.packed) == (1, 2)


@pytest.fixture
def little_garbage() -> Iterator[None]:
    """What the process holds already is not searched for garbage: with all libraries, that takes half a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_garbage")
async def test_while_an_engine_rests_it_holds_no_copy(world: World) -> None:
    with ComputeThread() as compute:
        async with TorchEngine(world.loaded, compute, max_batch=ROWS) as engine:
            await _sample(engine)
            for mode in PauseMode:
                [panels] = {weakref.ref(one) for one in engine._batch._forward._native._held[:1]}  # type: ignore[union-attr]
                assert panels() is not None
                await engine.pause(mode)
                gc.collect()
                assert panels() is None
                await engine.resume()
                await _sample(engine)


async def _sample(engine: TorchEngine) -> None:
    await asyncio.gather(*map(engine.generate, requests(ROWS)))


@pytest.mark.parametrize("how", ["too little is free", "the system grants none", "Python is out of memory"])
def test_without_memory_for_the_copy_torch_decodes_until_the_weights_change(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = EngineBatch(world.loaded, max_batch=ROWS)
    with monkeypatch.context() as patch:
        match how:
            case "too little is free":
                patch.setattr(step_module, "free_memory", lambda: 1000)
            case "the system grants none":
                patch.setattr(NativeStep, "_pack", lambda self: torch.empty(1 << 60))
            case _:
                patch.setattr(NativeStep, "_pack", _out_of_memory)
        sampled_right(world, batch, 0)
        sampled_right(world, batch, 0)
    assert caplog.text.count("no memory for the copy of the weights") == 1
    assert world.packed == 0
    put(world.loaded.model, world.plain.versions[1])
    batch.reload(1)
    sampled_right(world, batch, 1)
    assert world.packed == 1


def test_another_error_while_the_weights_are_copied_is_not_hidden(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativeStep, "_pack", lambda self: torch.ones(2) @ torch.ones(3))
    batch = EngineBatch(world.loaded, max_batch=ROWS)
    with pytest.raises(RuntimeError, match="size"):
        sampled_right(world, batch, 0)


def _out_of_memory(self: NativeStep) -> Any:
    raise MemoryError
