"""New weights in a running vLLM server: it serves exactly those that it was given, or still those that it had."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded_vllm import PROMPT, GuardedVllm, guarded_vllm, logprobs, nothing_left
from transformers import AutoModelForCausalLM

from loopwright.models.smollm2 import smollm2_folder
from loopwright.testing.weight_file import weight_file

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CACHE = Path.home() / ".cache" / "loopwright" / "models"
BUCKET = 1 << 26
MOVES = 5e-3
"""An update that moves no logprob by more than this proves nothing."""
distributed: Any = torch.distributed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedVllm]:
    with guarded_vllm(smollm2_folder(CACHE), tmp_path_factory.mktemp("vllm")) as started:
        yield started
        known = started.known()
        assert len(known["processes"]) >= 3
        assert known["files"]
    assert started.guard.returncode == 0
    nothing_left(known, 0)
    assert not started.state.exists()


@pytest.fixture(scope="module")
def model() -> Any:
    """The model whose weights the server has. A test that updates the server changes this one too."""
    return AutoModelForCausalLM.from_pretrained(smollm2_folder(CACHE), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def first_scores(server: GuardedVllm) -> list[float]:
    return server.scores(PROMPT)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(f"/dev/shm/loopwright-test-{os.getpid()}")
    made.mkdir()
    yield made
    shutil.rmtree(made)


@torch.no_grad()
def step(model: Any, seed: int) -> None:
    """Move every weight by about 1 % of its size."""
    before, random = logprobs(model, PROMPT), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.mul_(1 + 0.01 * torch.randn(parameter.shape, generator=random))
    moved = [abs(a - b) for a, b in zip(before, logprobs(model, PROMPT), strict=True)]
    assert max(moved) > MOVES


def manifest(model: Any, folder: Path) -> dict[str, Any]:
    return asdict(weight_file(dict(model.named_parameters()), folder / "weights.safetensors"))


def test_it_serves_the_checkpoint_and_says_what_it_is(
    server: GuardedVllm, first_scores: list[float], model: Any, folder: Path
) -> None:
    file = manifest(model, folder)
    about = {"extension": 1, "dtype": "float32", "tied": True, "moe": False, "rank": 0, "world_size": 1}
    assert server.call("loopwright_about", {"tensors": file["tensors"]}) == about | {"device": "cpu", "refuses": None}
    server.serves(model)


def test_a_file_is_loaded(server: GuardedVllm, model: Any, folder: Path) -> None:
    for seed in (1, 2):
        step(model, seed)
        file = manifest(model, folder)
        answer = server.call("loopwright_load_weights", {"file": file})
        print(f"by file: {answer}")
        assert (answer["status"], answer["checksum"]) == ("loaded", file["checksum"])
        server.serves(model)


def test_a_damaged_file_is_refused_and_the_old_weights_are_served(
    server: GuardedVllm, model: Any, folder: Path
) -> None:
    before = server.scores(PROMPT)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    step(model, 3)
    file = manifest(model, folder)
    with open(file["path"], "r+b") as opened:
        opened.seek(file["bytes"] // 2)
        opened.write(b"\xff")
    answer = server.call("loopwright_load_weights", {"file": file})
    model.load_state_dict(kept)
    assert (answer["status"], answer["touched"]) == ("refused", False)
    assert "checksum" in answer["why"]
    assert server.scores(PROMPT) == before
    server.serves(model)


def test_another_model_is_refused(server: GuardedVllm, model: Any, folder: Path) -> None:
    before, file = server.scores(PROMPT), manifest(model, folder)
    file["tensors"]["model.norm.weight"]["shape"] = [575]
    answer = server.call("loopwright_load_weights", {"file": file})
    assert answer == {
        "status": "refused",
        "why": "model.norm.weight has shape [575] instead of [576]",
        "touched": False,
    }
    assert server.scores(PROMPT) == before


class Sender:
    """The smallest one: rank 0 of a group of two."""

    def __init__(self, name: str, seconds: float) -> None:
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self._wait = timedelta(seconds=60)
        self.way = {"host": "127.0.0.1", "port": self._listening.getsockname()[1], "name": name, "size": 2}
        self.way |= {"backend": "gloo", "seconds": seconds, "bucket_bytes": BUCKET}

    def send(self, data: torch.Tensor, hang: threading.Event | None = None) -> None:
        """With `hang`, send one bucket, and wait for the event before the next one."""
        store = distributed.TCPStore(
            self.way["host"],
            self.way["port"],
            is_master=True,
            timeout=self._wait,
            wait_for_workers=False,
            master_listen_fd=self._listening.detach(),
        )
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = self._wait
        store = distributed.PrefixStore(self.way["name"], store)
        group = distributed.ProcessGroupGloo(store, 0, 2, options)
        how = distributed.BroadcastOptions()
        how.rootRank = 0
        for start in range(0, len(data), BUCKET):
            if start and hang is not None:
                hang.wait(60)
                return
            group.broadcast([data[start : start + BUCKET]], how).wait()


def sent(file: dict[str, Any]) -> torch.Tensor:
    """The file's bytes. The file itself is gone then: a broadcast does not need it."""
    data = torch.frombuffer(bytearray(Path(file["path"]).read_bytes()), dtype=torch.uint8)
    Path(file["path"]).unlink()
    return data


def test_a_broadcast_is_loaded(server: GuardedVllm, model: Any, folder: Path) -> None:
    for seed in (4, 5):
        step(model, seed)
        file, sender = manifest(model, folder), Sender(f"update-{seed}", 60)
        data = sent(file)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sender.send, data)
            answer = server.call("loopwright_load_weights", {"broadcast": sender.way, "file": file})
            sending.result()
        print(f"by broadcast: {answer}")
        assert (answer["status"], answer["checksum"]) == ("loaded", file["checksum"])
        server.serves(model)


def test_a_sender_that_hangs_changes_nothing_and_the_next_one_is_heard(
    server: GuardedVllm, model: Any, folder: Path
) -> None:
    before = server.scores(PROMPT)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    step(model, 6)
    file, hang = manifest(model, folder), threading.Event()
    hanging, data = Sender("hangs", 4), sent(file)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hanging.send, data, hang)
        begun = time.monotonic()
        answer = server.call("loopwright_load_weights", {"broadcast": hanging.way, "file": file})
        seconds = time.monotonic() - begun
        hang.set()
    print(f"freed after {seconds:.1f} s: {answer}")
    assert (answer["status"], answer["touched"]) == ("refused", False)
    assert seconds < 10
    assert server.scores(PROMPT) == before
    following = Sender("goes on", 60)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(following.send, data)
        answer = server.call("loopwright_load_weights", {"broadcast": following.way, "file": file})
    assert answer["status"] == "loaded"
    server.serves(model)
    model.load_state_dict(kept)


def test_the_way_back_is_exact(server: GuardedVllm, first_scores: list[float], folder: Path) -> None:
    """The weights that the server was started with give the scores of its start, bit for bit."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder(CACHE), dtype=torch.float32).eval()
    assert server.call("loopwright_load_weights", {"file": manifest(model, folder)})["status"] == "loaded"
    assert server.scores(PROMPT) == first_scores
    server.serves(model)
