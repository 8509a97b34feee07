"""What vLLM's workers load, without vLLM: an update is checked whole before the model is touched."""

from __future__ import annotations

import importlib.util
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import loopwright.engines.vllm
from loopwright.testing.weight_file import weight_file

EXTENSION = Path(loopwright.engines.vllm.__file__).parent / "extension" / "loopwright_vllm.py"
distributed: Any = torch.distributed


def loaded_extension() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loopwright_vllm", EXTENSION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


extension = loaded_extension()


class Head(torch.nn.Module):
    """An output layer with a packed copy of its weights, like that of vLLM's CPU build."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = 0
        self.quant_method = self

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        assert layer is self
        self.packed += 1


class Worker(extension.WeightLoader):  # type: ignore[name-defined,misc]
    """The parts of vLLM's worker that the extension uses."""

    def __init__(self, folder: Path, *, tied: bool = False, moe: bool = False) -> None:
        self.model_config = SimpleNamespace(
            model=str(folder),
            dtype=torch.float32,
            is_moe=moe,
            hf_text_config=SimpleNamespace(tie_word_embeddings=tied),
        )
        self.parallel_config = SimpleNamespace(world_size=1, data_parallel_size=1)
        self.rank = 0
        self.device = torch.device("cpu")
        self.model = torch.nn.ModuleDict({"lm_head": Head()})
        self.loaded: dict[str, torch.Tensor] | None = None
        self.fails = False

    def get_model(self) -> torch.nn.Module:
        return self.model

    def reload_weights(self, weights_iterator: Any) -> None:
        if self.fails:
            raise RuntimeError("out of memory")
        self.loaded = {name: tensor.clone() for name, tensor in weights_iterator}


class Model(torch.nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, width)
        self.norm = torch.nn.Linear(width, 3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    weight_file(dict(Model().named_parameters()), folder / "model.safetensors")
    return folder


def manifest(model: torch.nn.Module, folder: Path) -> dict[str, Any]:
    return asdict(weight_file(dict(model.named_parameters()), folder / "weights.safetensors"))


def load(worker: Worker, update: Any) -> dict[str, Any]:
    answer: dict[str, Any] = worker.loopwright_load_weights(json.dumps(update))
    return answer


def test_it_loads_what_was_written(checkpoint: Path, tmp_path: Path) -> None:
    worker, model = Worker(checkpoint), Model()
    answer = load(worker, {"file": (file := manifest(model, tmp_path))})
    assert answer.pop("seconds") > 0
    assert answer == {"status": "loaded", "tensors": 3, "checksum": file["checksum"], "touched": True}
    assert worker.loaded is not None
    assert {name: p.tolist() for name, p in worker.loaded.items()} == {
        name: p.tolist() for name, p in model.named_parameters()
    }
    assert worker.model["lm_head"].packed == 0


def test_a_tied_head_is_packed_again_and_need_not_be_sent(checkpoint: Path, tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.zeros(7, 5)}, checkpoint / "more.safetensors")
    tied, untied = Worker(checkpoint, tied=True), Worker(checkpoint)
    update = {"file": manifest(Model(), tmp_path)}
    assert load(tied, update)["status"] == "loaded"
    assert tied.model["lm_head"].packed == 1
    assert load(untied, update) == {"status": "refused", "why": "it has no lm_head.weight", "touched": False}


def damaged(update: dict[str, Any], how: str) -> None:
    file = Path(update["path"])
    data = bytearray(file.read_bytes())
    if how == "bit":
        data[-1] ^= 1
        file.write_bytes(data)
    elif how == "short":
        file.write_bytes(data[:-1])
    elif how == "gone":
        file.unlink()
    elif how == "checksum":
        update["checksum"] = "crc32:00000000"
    elif how == "unknown":
        update["tensors"]["other.weight"] = {"dtype": "F32", "shape": [1]}
    elif how == "missing":
        del update["tensors"]["norm.bias"]
    elif how == "shape":
        update["tensors"]["embed.weight"]["shape"] = [5, 7]
    elif how == "dtype":
        update["tensors"]["embed.weight"]["dtype"] = "I8"
    elif how == "another dtype":
        update["tensors"]["embed.weight"]["dtype"] = "BF16"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("bit", "its checksum is crc32:"),
        ("short", "bytes instead of"),
        ("gone", "FileNotFoundError"),
        ("checksum", "instead of crc32:00000000"),
        ("unknown", "the model has no other.weight"),
        ("missing", "it has no norm.bias"),
        ("shape", "embed.weight has shape [5, 7] instead of [7, 5]"),
        ("dtype", "embed.weight has dtype I8"),
        ("another dtype", "not those of its manifest"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_touched(
    checkpoint: Path, tmp_path: Path, how: str, why: str
) -> None:
    worker, file = Worker(checkpoint), manifest(Model(), tmp_path)
    damaged(file, how)
    answer = load(worker, {"file": file})
    assert why in answer.pop("why")
    assert answer == {"status": "refused", "touched": False}
    assert worker.loaded is None
    assert load(worker, {"file": manifest(Model(), tmp_path)})["status"] == "loaded"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": {}}'])
def test_a_text_that_is_no_update_is_refused(checkpoint: Path, text: str) -> None:
    answer = Worker(checkpoint).loopwright_load_weights(text)
    assert (answer["status"], answer["touched"]) == ("refused", False)


def test_an_update_of_another_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    answer = load(Worker(checkpoint), {"file": manifest(Model(width=6), tmp_path)})
    assert "embed.weight has shape [7, 6]" in answer["why"]


def test_a_reload_that_fails_loses_the_server_for_good(checkpoint: Path, tmp_path: Path) -> None:
    worker, update = Worker(checkpoint), {"file": manifest(Model(), tmp_path)}
    worker.fails = True
    assert load(worker, update) == {"status": "lost", "why": "RuntimeError: out of memory", "touched": True}
    worker.fails = False
    assert load(worker, update)["status"] == "lost"
    assert worker.loaded is None


def test_a_mixture_of_experts_is_refused_on_cpus(checkpoint: Path, tmp_path: Path) -> None:
    worker = Worker(checkpoint, moe=True)
    assert "mixture of experts" in load(worker, {"file": manifest(Model(), tmp_path)})["why"]
    assert "mixture of experts" in worker.loopwright_about("{}")["refuses"]


def test_it_says_what_it_is_and_what_it_would_refuse(checkpoint: Path, tmp_path: Path) -> None:
    worker = Worker(checkpoint, tied=True)
    about = {"extension": 1, "dtype": "float32", "tied": True, "moe": False, "rank": 0, "world_size": 1}
    assert worker.loopwright_about("{}") == about | {"device": "cpu", "refuses": None}
    file = manifest(Model(), tmp_path)
    assert worker.loopwright_about(json.dumps({"tensors": file["tensors"]}))["refuses"] is None
    del file["tensors"]["norm.bias"]
    assert worker.loopwright_about(json.dumps({"tensors": file["tensors"]}))["refuses"] == "it has no norm.bias"


def test_the_checkpoint_may_be_gone_after_the_first_look(checkpoint: Path, tmp_path: Path) -> None:
    worker = Worker(checkpoint)
    worker.loopwright_about("{}")
    (checkpoint / "model.safetensors").unlink()
    assert load(worker, {"file": manifest(Model(), tmp_path)})["status"] == "loaded"


def test_a_checkpoint_in_several_files_is_read_by_its_index(checkpoint: Path, tmp_path: Path) -> None:
    save_file({"stray": torch.zeros(1)}, checkpoint / "consolidated.safetensors")
    index = {"weight_map": {"embed.weight": "model.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load(Worker(checkpoint), {"file": manifest(Model(), tmp_path)})["status"] == "loaded"


@pytest.fixture
def listener() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening


def send(listening: socket.socket, file: Path, bucket: int, hold: Event | None = None) -> None:
    """The smallest sender: rank 0 of a group of two. With `hold` it sends one bucket, waits for that, and ends."""
    wait = timedelta(seconds=20)
    port = listening.getsockname()[1]
    store = distributed.TCPStore(
        "127.0.0.1", port, is_master=True, timeout=wait, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = wait
    group = distributed.ProcessGroupGloo(distributed.PrefixStore("update-7", store), 0, 2, options)
    data = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
    how = distributed.BroadcastOptions()
    how.rootRank = 0
    for start in range(0, len(data), bucket):
        if start and hold is not None:
            hold.wait(20)
            return
        group.broadcast([data[start : start + bucket]], how).wait()


def broadcast(listening: socket.socket, file: dict[str, Any], bucket: int, seconds: float) -> dict[str, Any]:
    way = {"host": "127.0.0.1", "port": listening.getsockname()[1], "name": "update-7", "size": 2, "backend": "gloo"}
    return {"broadcast": way | {"seconds": seconds, "bucket_bytes": bucket}, "file": file | {"path": "/not/read"}}


@pytest.mark.parametrize("bucket", [64, 100, 1 << 20])
def test_a_broadcast_gives_the_same_weights_as_the_file(
    checkpoint: Path, tmp_path: Path, listener: socket.socket, bucket: int
) -> None:
    worker, model = Worker(checkpoint), Model()
    file = manifest(model, tmp_path)
    update = broadcast(listener, file, bucket, 20)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, listener, Path(file["path"]), bucket)
        answer = load(worker, update)
        sent.result()
    assert (answer["status"], answer["checksum"]) == ("loaded", file["checksum"])
    assert worker.loaded is not None
    assert all(torch.equal(worker.loaded[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize("sender", ["silent", "hangs", "ends"])
def test_a_sender_that_hangs_or_ends_changes_nothing(
    checkpoint: Path, tmp_path: Path, listener: socket.socket, sender: str
) -> None:
    """The silent one listens, and never answers."""
    worker, file, hold = Worker(checkpoint), manifest(Model(), tmp_path), Event()
    update = broadcast(listener, file, 100, 1)
    if sender == "ends":
        hold.set()
    with ThreadPoolExecutor(1) as pool:
        if sender != "silent":
            pool.submit(send, listener, Path(file["path"]), 100, hold)
        answer = load(worker, update)
        hold.set()
    listener.close()
    assert (answer["status"], answer["touched"]) == ("refused", False)
    assert worker.loaded is None
    assert load(worker, {"file": file})["status"] == "loaded"


def leased(worker: Worker, run: str, lineage: int = 0, seconds: float = 60.0, *, renews: bool = False) -> str:
    asked = {"run": run, "lineage": lineage, "seconds": seconds, "renews": renews}
    return str(worker.loopwright_lease(json.dumps(asked))["status"])


def test_one_run_at_a_time_changes_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    worker = Worker(checkpoint)
    assert leased(worker, "a", 1) == "held"
    assert leased(worker, "a", 1, renews=True) == "held"
    assert leased(worker, "b", 9) == "refused"
    update = {"file": manifest(Model(), tmp_path)}
    for holder in ({}, {"holder": {"run": "b", "lineage": 9}}, {"holder": {"run": "a", "lineage": 0}}):
        answer = load(worker, {**update, **holder})
        assert (answer["status"], answer["touched"]) == ("refused", False)
        assert "run a (lineage 1) holds this server" in answer["why"]
    assert load(worker, {**update, "holder": {"run": "a", "lineage": 1}})["status"] == "loaded"


def test_the_resumed_run_takes_over_and_the_one_before_is_refused(checkpoint: Path) -> None:
    worker = Worker(checkpoint)
    assert leased(worker, "a", 1) == "held"
    assert leased(worker, "a", 2) == "held"
    assert leased(worker, "a", 1, renews=True) == "refused"


def test_a_lease_that_was_given_back_or_ran_out_is_free(checkpoint: Path) -> None:
    worker = Worker(checkpoint)
    assert leased(worker, "a", seconds=0.0) == "held"
    assert leased(worker, "b") == "held"
    assert leased(worker, "b", seconds=0.0, renews=True) == "held"
    assert leased(worker, "c") == "held"


def test_a_server_that_was_started_again_does_not_know_the_lease(checkpoint: Path) -> None:
    assert leased(Worker(checkpoint), "a", renews=True) == "unknown"
