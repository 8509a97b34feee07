"""Weights by broadcast: the same bits (W3), within a deadline (W2), or the old weights and the right error."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bits import same_bits, some_tensors, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from teacher import Teacher

import loopwright.engines.vllm
from loopwright.engines.http.wire import update_to_json
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import EngineLostError, WeightsError
from loopwright.models import broadcast as models_broadcast
from loopwright.models.broadcast import BroadcastSender, receive_weights
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.weight_file import weight_file
from loopwright.types import (
    IN_PLACE,
    BroadcastBackend,
    GenerateRequest,
    PauseMode,
    Sampling,
    WeightBroadcast,
    WeightFile,
    WeightUpdate,
)
from loopwright.weights import broadcast
from loopwright.weights.broadcast import BroadcastEngine, Broadcasting

HOST = "127.0.0.1"
TENSORS = {"a": tensor(torch.float32, (100, 7)), "b": tensor(torch.bfloat16, (3,), 1)}


def sender(file: WeightFile, *, seconds: float = 20.0, bucket_bytes: int = 1000, workers: int = 1) -> BroadcastSender:
    gloo = BroadcastBackend.GLOO
    return BroadcastSender(file, HOST, workers=workers, backend=gloo, seconds=seconds, bucket_bytes=bucket_bytes)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def passed(file: WeightFile, bucket_bytes: int) -> dict[str, torch.Tensor]:
    """What arrives, when `file` is sent to a receiver that is told to expect it."""
    sending = sender(file, bucket_bytes=bucket_bytes)
    thread = in_thread(lambda: sending.send(lambda: None))
    try:
        return dict(receive_weights(sending.update))
    finally:
        sending.stop()
        thread.join(20)
        assert not thread.is_alive()


@settings(max_examples=25)
@given(some_tensors(), st.integers(1, 400))
def test_a_broadcast_changes_no_bit(tensors: dict[str, torch.Tensor], bucket_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = weight_file(tensors, Path(folder) / "w.safetensors")
        assert same_bits(passed(file, bucket_bytes), tensors)


def test_all_workers_of_an_engine_get_the_same(tmp_path: Path) -> None:
    sending = sender(weight_file(TENSORS, tmp_path / "w"), workers=3)
    thread = in_thread(lambda: sending.send(lambda: None))
    received: dict[int, object] = {}
    workers = [
        in_thread(lambda rank=rank: received.update({rank: receive_weights(sending.update, rank)}))  # type: ignore[misc]
        for rank in (1, 2, 3)
    ]
    for worker in workers:
        worker.join(20)
    sending.stop()
    thread.join(20)
    assert [same_bits(received[rank], TENSORS) for rank in (1, 2, 3)] == [True] * 3  # type: ignore[arg-type]


def test_the_extension_of_vllm_receives_what_is_sent(tmp_path: Path) -> None:
    """It is one file that imports nothing of ours, and has a receiver of its own."""
    place = Path(loopwright.engines.vllm.__file__).parent / "extension" / "loopwright_vllm.py"
    found = importlib.util.spec_from_file_location("loopwright_vllm", place)
    assert found is not None
    assert found.loader is not None
    extension = importlib.util.module_from_spec(found)
    found.loader.exec_module(extension)
    sending = sender(weight_file(TENSORS, tmp_path / "w"))
    thread = in_thread(lambda: sending.send(lambda: None))
    told: Any = json.loads(json.dumps(update_to_json(1, sending.update)))
    data = extension._received(told["broadcast"], told["file"]["bytes"], 1, torch.device("cpu"))
    sending.stop()
    thread.join(20)
    assert extension._checksum(data) == told["file"]["checksum"]
    assert same_bits(extension._tensors(data, extension._specs(told["file"]["tensors"])), TENSORS)


@pytest.mark.parametrize(
    ("told", "words"),
    [({"checksum": "crc32:00000000"}, "its checksum is"), ({"tensors": {}}, "not those of its manifest")],
)
def test_what_is_not_as_its_manifest_says_is_refused(tmp_path: Path, told: dict[str, object], words: str) -> None:
    file = weight_file(TENSORS, tmp_path / "w")
    with pytest.raises(WeightsError, match=words):
        passed(replace(file, **told), 1000)  # type: ignore[arg-type]
    assert same_bits(passed(file, 1000), TENSORS)


def test_only_the_named_address_is_listened_at(tmp_path: Path) -> None:
    sending = sender(weight_file(TENSORS, tmp_path / "w"))
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening += [line.split()[1] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    port = f":{sending.update.port:04X}"
    # The store's own connection to itself has this port at one end.
    assert {one for one in listening if one.endswith(port)} <= {f"0100007F{port}", _mapped(port)}
    assert f"0100007F{port}" in listening
    with pytest.raises(WeightsError, match=r"cannot be sent from 203\.0\.113\.1"):
        BroadcastSender(
            sending.update.file, "203.0.113.1", workers=1, backend=BroadcastBackend.GLOO, seconds=1, bucket_bytes=1
        )


def _mapped(port: str) -> str:
    """127.0.0.1 as an IPv6 socket shows it."""
    return f"0000000000000000FFFF00000100007F{port}"


def test_a_store_that_accepts_and_says_nothing_does_not_hold_the_receiver(tmp_path: Path) -> None:
    file = weight_file(TENSORS, tmp_path / "w")
    with socket.create_server((HOST, 0)) as silent:
        update = WeightBroadcast(file, HOST, silent.getsockname()[1], "x", 2, BroadcastBackend.GLOO, 0.2, 1000)
        begun = time.monotonic()
        with pytest.raises(WeightsError, match=r"not done within 0\.2 s"):
            receive_weights(update)
        assert time.monotonic() - begun < 10


# The sender's adapter, over engines that behave in every way.

Load = Callable[[WeightBroadcast], Awaitable[None]]


class Receiver(ScriptedEngine):
    """Does with an update what `behaviour` says. `received` is what it got last."""

    def __init__(self, behaviour: Load | None = None) -> None:
        super().__init__(lambda request: (1,))
        self.behaviour = behaviour or self.receive
        self.received: dict[str, torch.Tensor] = {}
        self.asked: list[WeightUpdate] = []

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        self.asked.append(update)
        if isinstance(update, WeightBroadcast):
            await self.behaviour(update)
        await super().load(version, update)

    async def receive(self, update: WeightBroadcast) -> None:
        self.received = dict(await asyncio.to_thread(receive_weights, update))


async def refuse(update: WeightBroadcast) -> None:
    raise WeightsError("it does not fit", remedy="-")


async def die(update: WeightBroadcast) -> None:
    raise EngineLostError("the engine died", remedy="-")


async def hang(update: WeightBroadcast) -> None:
    await asyncio.Event().wait()


async def come_and_die(update: WeightBroadcast) -> None:
    """Leaves the group after the first bucket."""
    await asyncio.to_thread(_take_one_bucket, update)
    raise EngineLostError("the engine died", remedy="-")


async def come_and_hang(update: WeightBroadcast) -> None:
    await asyncio.to_thread(_take_one_bucket, update)
    await asyncio.Event().wait()


def _take_one_bucket(update: WeightBroadcast) -> None:
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    from loopwright.models.broadcast import _Group

    timeout = timedelta(seconds=update.seconds)
    store = TCPStore(update.host, update.port, is_master=False, timeout=timeout, wait_for_workers=False)
    group = _Group(update, 1, store, HOST, time.monotonic() + update.seconds)
    next(group.buckets(torch.empty(update.file.bytes, dtype=torch.uint8)))


class FakeNccl:
    """A group of GPUs that notes on which device it is given tensors, and moves nothing."""

    Options = SimpleNamespace

    def __init__(self, *how: object) -> None:
        self.devices: list[str] = []

    def broadcast(self, tensors: list[torch.Tensor], options: object) -> SimpleNamespace:
        self.devices += [str(one.device) for one in tensors]
        return SimpleNamespace(wait=lambda timeout: None)


@pytest.mark.parametrize("rank", [0, 1])
def test_by_nccl_bytes_go_through_the_named_gpu_and_only_receivers_write_them(
    monkeypatch: pytest.MonkeyPatch, big_file: WeightFile, rank: int
) -> None:
    """A tensor of `meta` has no numbers, so to copy it back is an error."""
    from torch._C._distributed_c10d import HashStore

    from loopwright.models.broadcast import _Group

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", FakeNccl, raising=False)
    update = WeightBroadcast(big_file, HOST, 1, "x", 2, BroadcastBackend.NCCL, 20.0, 1000)
    group = _Group(update, rank, HashStore(), HOST, time.monotonic() + 20.0, "meta")
    buckets = group.buckets(torch.zeros(2000, dtype=torch.uint8))
    if rank == 0:
        assert len(list(buckets)) == 2
        assert group._group.devices == ["meta", "meta"]
    else:
        with pytest.raises(NotImplementedError, match="meta"):
            next(buckets)


def sending_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "loopwright-send"]


async def no_sending_threads() -> None:
    async with asyncio.timeout(20):
        while sending_threads():
            await asyncio.sleep(0.005)


@pytest.fixture
def big_file(tmp_path: Path) -> WeightFile:
    """More than the sockets between two members can hold."""
    return weight_file({"a": torch.arange(2**23, dtype=torch.float32)}, tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (refuse, WeightsError, "does not fit"),
        (die, EngineLostError, "died"),
        (hang, EngineLostError, "does not answer"),
        (come_and_die, EngineLostError, "died"),
        (come_and_hang, EngineLostError, "does not answer"),
    ],
)
async def test_every_failure_ends_in_time_with_the_right_error_and_the_next_update_works(
    big_file: WeightFile,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: Load,
    kind: type[Exception],
    words: str,
) -> None:
    monkeypatch.setattr(broadcast, "ANSWER_SECONDS", 0.2)
    receiver = Receiver(behaviour)
    engine = BroadcastEngine(receiver, Broadcasting(HOST, seconds=1.0, bucket_bytes=2**20))
    async with asyncio.timeout(20):
        with pytest.raises(kind, match=words) as failed:
            await engine.load(1, big_file)
    assert type(failed.value) is kind
    assert engine.version == 0
    # The thread ends, and with it the port.
    await no_sending_threads()
    told = receiver.asked[0]
    assert isinstance(told, WeightBroadcast)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((told.host, told.port), timeout=5)
    receiver.behaviour = receiver.receive
    again = BroadcastEngine(receiver, Broadcasting(HOST, seconds=60))
    await again.load(1, big_file)
    assert again.version == 1
    assert torch.equal(receiver.received["a"], torch.arange(2**23, dtype=torch.float32))
    await no_sending_threads()


async def test_no_engine_is_asked_to_receive_a_file_that_is_gone(tmp_path: Path) -> None:
    file, receiver = replace(weight_file(TENSORS, tmp_path / "w"), path=str(tmp_path / "gone")), Receiver()
    with pytest.raises(WeightsError, match="No such file"):
        await BroadcastEngine(receiver, Broadcasting(HOST)).load(1, file)
    assert receiver.asked == []


async def test_an_engine_that_comes_late_finds_nobody_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_broadcast, "CONNECT_SECONDS", 0.2)
    receiver = Receiver(refuse)
    with pytest.raises(WeightsError, match="does not fit"):
        await BroadcastEngine(receiver, Broadcasting(HOST)).load(1, weight_file(TENSORS, tmp_path / "w"))
    await no_sending_threads()
    told = receiver.asked[0]
    assert isinstance(told, WeightBroadcast)
    assert told.seconds == broadcast.SECONDS
    async with asyncio.timeout(20):
        with pytest.raises(WeightsError, match="nothing was changed"):
            await receiver.receive(told)


async def test_a_cancelled_update_cancels_the_engine_and_ends_the_thread(big_file: WeightFile) -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def wait(update: WeightBroadcast) -> None:
        came.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    engine = BroadcastEngine(Receiver(wait), Broadcasting(HOST, seconds=60))
    loading = asyncio.create_task(engine.load(1, big_file))
    await came.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert gone.is_set()
    await no_sending_threads()


async def test_all_else_is_passed_on(tmp_path: Path) -> None:
    receiver = Receiver()
    engine = BroadcastEngine(receiver, Broadcasting(HOST))
    await engine.load(4)
    assert receiver.asked == [IN_PLACE]
    assert engine.version == 4
    await engine.pause(PauseMode.KEEP)
    await engine.resume()
    assert (await engine.generate(GenerateRequest("r", (5,), Sampling(max_new_tokens=1)))).versions == (4,)
    await engine.abort("r")
    assert (await engine.probe(GenerateRequest("p", (5, 6), Sampling(max_new_tokens=1)))).sampled.versions == (4,)


# Our engine as the receiver.


def weights_of(engine: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in engine._model.named_parameters()}


async def test_tokens_are_sampled_while_weights_arrive(teacher: Teacher, engine: TorchEngine, tmp_path: Path) -> None:
    teacher.step()
    own = dict(teacher.model.named_parameters())
    sending = sender(weight_file(own, tmp_path / "w"), bucket_bytes=2**16)
    loading = asyncio.create_task(engine.load(1, sending.update))
    # Nothing is sent yet, and the engine waits for it.
    sampled = await engine.generate(GenerateRequest("r", (5, 6, 7), Sampling(max_new_tokens=8)))
    assert sampled.versions == (0,) * 8
    assert not loading.done()
    thread = in_thread(lambda: sending.send(lambda: None))
    await loading
    sending.stop()
    thread.join(20)
    assert engine.version == 1
    assert same_bits(weights_of(engine), own)


async def test_weights_that_come_after_newer_ones_are_not_loaded(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    """Whoever sent the old ones may have given up, and loaded newer ones since."""
    old, new = (weight_file(_stepped(teacher), tmp_path / name) for name in ("old", "new"))
    sending = sender(old)
    late = asyncio.create_task(engine.load(1, sending.update))
    await asyncio.sleep(0)
    await engine.load(2, new)
    thread = in_thread(lambda: sending.send(lambda: None))
    with pytest.raises(WeightsError, match="newer update"):
        await late
    sending.stop()
    thread.join(20)
    assert engine.version == 2
    assert same_bits(weights_of(engine), dict(teacher.model.named_parameters()))


def _stepped(teacher: Teacher) -> dict[str, torch.Tensor]:
    teacher.step()
    return {name: one.detach().clone() for name, one in teacher.model.named_parameters()}
