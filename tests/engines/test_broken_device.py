"""A device that can compute nothing more: an engine's own process ends and is replaced, and a run's own engine ends the
run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright.build.engines import end_of_embedded
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.process import engine_command, engine_process
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.torch.forward import Forward
from loopwright.engines.worker import embedded
from loopwright.errors import DeviceError, EngineError, EngineLostError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.types import GenerateRequest, Generation, PauseMode, Sampling

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`"

PROGRAM = """
import sys
from pathlib import Path
import torch
from loopwright.cli import main
from loopwright.engines.torch.forward import Forward

broken, advance, steps = Path(sys.argv.pop(1)), Forward.advance, 0

def break_once(forward, *args):
    global steps
    steps += 1
    if steps == 100 and not broken.exists():
        broken.touch()
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    return advance(forward, *args)

Forward.advance = break_once
main()
"""


@pytest.fixture
async def engine(loaded: LoadedModel) -> AsyncIterator[TorchEngine]:
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=2) as engine:
            yield engine
        assert not engine._callers


def ask(number: int = 0, tokens: int = 12) -> GenerateRequest:
    return GenerateRequest(str(number), (5, 6, 7), Sampling(max_new_tokens=tokens, seed=number))


def breaks(monkeypatch: pytest.MonkeyPatch, what: str = ILLEGAL) -> None:
    def fail(*_: Any) -> None:
        raise torch.AcceleratorError(what)

    monkeypatch.setattr(Forward, "advance", fail)


async def test_every_call_from_then_on_says_that_the_device_is_broken(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = asyncio.create_task(engine.died())
    with monkeypatch.context() as broken:
        breaks(broken)
        async with asyncio.timeout(20):
            outcomes = await asyncio.gather(*(engine.generate(ask(i)) for i in range(4)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineLostError] * 4
    async with asyncio.timeout(20):
        lost = await watching
        assert await engine.died() is lost, "also for who asks later"
        for call in (engine.generate(ask()), engine.pause(PauseMode.DRAIN), engine.load(1), engine.probe(ask())):
            with pytest.raises(EngineLostError) as caught:
                await call
            assert caught.value.message == lost.message
    assert lost.message.endswith("on cpu: AcceleratorError: CUDA error: an illegal memory access was encountered")
    assert "start the command again" in lost.remedy


async def test_a_probe_that_breaks_it_fails_those_who_run(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    running = asyncio.create_task(engine.generate(ask(tokens=900)))
    async with asyncio.timeout(20):
        while not engine._batch.live:
            await asyncio.sleep(0.001)
        await engine.pause(PauseMode.KEEP)
        with monkeypatch.context() as broken:
            breaks(broken)
            with pytest.raises(EngineLostError):
                await engine.probe(ask())
        with pytest.raises(EngineLostError):
            await running


async def test_memory_that_ran_out_breaks_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        breaks(full, "CUDA error: out of memory")
        with pytest.raises(EngineError, match="out of memory on the cpu"):
            await engine.generate(ask())
    assert len((await engine.generate(ask())).ids) == 12


async def test_a_runs_own_engine_ends_the_run(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = embedded(engine, died=partial(end_of_embedded, engine))
    async with RolloutController.open([launch]) as controller:
        assert isinstance(await controller.generate(ask()), Generation)
        with monkeypatch.context() as broken:
            breaks(broken)
            async with asyncio.timeout(20):
                for _ in range(2):
                    with pytest.raises(DeviceError, match="illegal memory access") as caught:
                        await controller.generate(ask())
    assert "start the command again" in caught.value.remedy


@pytest.mark.real
async def test_a_process_ends_and_costs_no_token(tiny_llama_folder: Path, tmp_path: Path) -> None:
    """The answer goes on from the tokens that came before, in the process that replaces it."""
    command, words = engine_command(str(tiny_llama_folder), threads=1, max_batch=2, native=False), list[str]()
    command[1 : 2 + command.index("-m")] = ["-c", PROGRAM, str(tmp_path / "broken")]
    launch = partial(engine_process, command, env=os.environ, log=tmp_path / "log", start_seconds=120)
    async with asyncio.timeout(200), RolloutController.open([launch], on_death=words.append) as controller:
        request = ask(tokens=150)
        got = await controller.generate(request)
        expected = await controller.generate(request)
    assert command[0] == sys.executable
    assert got.ids == expected.ids
    assert len(got.ids) == 150
    (said,) = words
    assert "exit code 1" in said
    assert "the process ends: the engine can compute nothing more on cpu" in said
