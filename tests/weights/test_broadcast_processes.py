"""Senders and receivers of weights in two processes: one of them is stopped or killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import zlib
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from member import BUCKET, tensors
from teacher import Teacher

from loopwright.engines.controller import RolloutController
from loopwright.engines.http.process import engine_command, engine_process
from loopwright.engines.http.wire import update_from_json, update_to_json
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.worker import Worker
from loopwright.errors import EngineLostError, LoopwrightError, WeightsError
from loopwright.models.broadcast import receive_weights
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.weight_file import weight_file
from loopwright.types import IN_PLACE, GenerateRequest, Sampling, WeightBroadcast, WeightUpdate
from loopwright.weights import broadcast
from loopwright.weights.broadcast import BroadcastEngine, Broadcasting
from loopwright.weights.proof import WeightProof
from loopwright.weights.shared_memory import SharedMemoryWeights

pytestmark = pytest.mark.real

HOST = "127.0.0.1"
MEMBER = str(Path(__file__).with_name("member.py"))
PROBE = GenerateRequest("probe", (5, 6, 7, 8, 9), Sampling(max_new_tokens=4, seed=3))


@asynccontextmanager
async def member(*told: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, MEMBER, *told, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> bytes:
    if process.stdout is None:
        raise RuntimeError("it is started with pipes")
    async with asyncio.timeout(60):
        return await process.stdout.readline()


class OtherProcess(ScriptedEngine):
    """An engine whose weights are received by `process`."""

    def __init__(self, process: Process) -> None:
        super().__init__(lambda request: (1,))
        self._process = process
        self.received = 0

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        if self._process.stdin is None:
            raise RuntimeError("it is started with pipes")
        self._process.stdin.write(json.dumps(update_to_json(version, update)).encode() + b"\n")
        await line(self._process)
        answer = await self._process.stdout.readline() if self._process.stdout else b""
        if not answer:
            raise EngineLostError("its process died", remedy="-")
        self.received = int(answer)
        await super().load(version, update)


@pytest.mark.parametrize(("how", "kind"), [("killed", EngineLostError), ("stopped", EngineLostError), ("whole", None)])
async def test_a_receiver_that_is_killed_or_stopped_is_lost_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, kind: type[LoopwrightError] | None
) -> None:
    monkeypatch.setattr(broadcast, "ANSWER_SECONDS", 0.5)
    file, seconds = weight_file(tensors(), tmp_path / "w.safetensors"), 60.0 if kind is None else 4.0
    async with member("receive", how) as process:
        other = OtherProcess(process)
        engine = BroadcastEngine(other, Broadcasting(HOST, seconds=seconds, bucket_bytes=BUCKET))
        begun = time.monotonic()
        if kind is None:
            await engine.load(1, file)
            assert other.received == zlib.crc32(tensors()["a"].numpy().data)
        else:
            with pytest.raises(kind):
                await engine.load(1, file)
            assert time.monotonic() - begun < seconds + 3
            assert engine.version == 0


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_half_an_update_leaves_the_old_weights(tmp_path: Path, tiny_llama_folder: Path, how: str) -> None:
    """The sender dies or hangs after the first bucket. Our engine says so in time, and takes the next update."""
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    before = {name: one.detach().clone() for name, one in loaded.model.named_parameters()}
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute) as engine, member("send", how, str(tmp_path), "4") as process:
            _, update = update_from_json(json.loads(await line(process)))
            begun = time.monotonic()
            with pytest.raises(WeightsError, match="nothing was changed"):
                await engine.load(1, update)
            assert time.monotonic() - begun < (3 if how == "killed" else 7)
            assert engine.version == 0
            assert all(torch.equal(one, before[name]) for name, one in loaded.model.named_parameters())
            new = {name: one * 1.5 for name, one in before.items()}
            sent = BroadcastEngine(engine, Broadcasting(HOST, bucket_bytes=1000))
            await sent.load(2, weight_file(new, tmp_path / "new.safetensors"))
            assert engine.version == 2
            assert all(torch.equal(one, new[name]) for name, one in loaded.model.named_parameters())


async def test_bytes_from_another_process_are_the_same(tmp_path: Path) -> None:
    async with member("send", "whole", str(tmp_path), "60") as process:
        _, update = update_from_json(json.loads(await line(process)))
        assert isinstance(update, WeightBroadcast)
        assert torch.equal((await asyncio.to_thread(receive_weights, update))["a"], tensors()["a"])


@asynccontextmanager
async def launched(model: Path, log: Path) -> AsyncIterator[Worker]:
    command = engine_command(str(model), threads=1, max_batch=4)
    async with engine_process(command, env=os.environ, log=log, start_seconds=120) as worker:
        yield worker


async def test_every_transport_gives_an_engine_the_same_weights(tmp_path: Path, tiny_llama_folder: Path) -> None:
    """In place, a file and a broadcast to `loopwright engine`: the same logprobs to the last bit (W3)."""
    teacher = Teacher(load_model(str(tiny_llama_folder), cache=tiny_llama_folder))
    teacher.step()
    file = weight_file(dict(teacher.model.named_parameters()), tmp_path / "w.safetensors")
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    with torch.no_grad():
        for name, one in loaded.model.named_parameters():
            one.copy_(dict(teacher.model.named_parameters())[name])
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute) as engine:
            await engine.load(1)
            answers = [await engine.probe(PROBE)]
    for send in (False, True):
        async with launched(tiny_llama_folder, tmp_path / f"log-{send}") as worker:
            before = await worker.engine.probe(PROBE)
            other = BroadcastEngine(worker.engine, Broadcasting(HOST, bucket_bytes=1000)) if send else worker.engine
            await other.load(1, file)
            answers.append(await other.probe(PROBE))
            assert before.prompt_logprobs != answers[-1].prompt_logprobs
    assert answers[0] == answers[1] == answers[2]


async def test_one_dead_engine_breaks_no_others_update(tmp_path: Path, tiny_llama_folder: Path) -> None:
    """Two engines, one of them stopped: the other has the new weights, and the stopped one is lost and replaced."""
    teacher: Any = Teacher(load_model(str(tiny_llama_folder), cache=tiny_llama_folder))
    proof, lost, before = WeightProof(teacher, 300), list[str](), children()

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        async with launched(tiny_llama_folder, tmp_path / "log") as worker:
            yield Worker(BroadcastEngine(worker.engine, Broadcasting(HOST, seconds=3.0)), worker.died)

    async with RolloutController.open([launch, launch], on_death=lost.append, prove=proof) as controller:
        first, second = children() - before
        os.kill(first, signal.SIGSTOP)
        teacher.step()
        async with asyncio.timeout(60):
            metrics = await SharedMemoryWeights(teacher, controller, tmp_path, proof).publish(1)
            assert len([name for name in metrics if name.startswith("engine/")]) == 1
            answer = await controller.generate(PROBE)
            assert answer.versions == (1,) * 4
            # A process that is stopped does not end until it is killed.
            os.kill(first, signal.SIGKILL)
            while not lost or not children() - before - {second}:
                await asyncio.sleep(0.01)
    assert len(lost) == 1


def children() -> set[int]:
    """The engines that this process has started."""
    pids = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return {pid for pid in pids if "engine" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")}
