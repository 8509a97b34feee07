"""Loads new weights into a running vLLM server. vLLM mixes `WeightLoader` into its worker class.

This file is all of Loopwright that vLLM's environment sees: its folder goes onto PYTHONPATH, and the server is started
with `--worker-extension-cls loopwright_vllm.WeightLoader`.

Every byte of an update is received and checked before the model is touched, because vLLM cannot undo a reload that
fails half-way: the next request kills the server. So an answer has one of three statuses:

- `loaded`: the worker has the new weights.
- `refused`: nothing was touched, and the worker has the weights that it had. Another update may be sent.
- `lost`: the reload failed. The server must be replaced.

An error would be answered with status 500, which resets the connection; so all of these are plain answers. The time
limit is kept here, because the server dies if `timeout` of /collective_rpc expires.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

distributed: Any = torch.distributed
"""torch has no types for some of what is used here."""
VERSION = 1
BLOCK = 1 << 24
PREAMBLE = 8
"""A safetensors file begins with the length of its header, in this many bytes."""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
COMPUTED = "rotary_emb.inv_freq"
"""Some checkpoints have this one. It is computed from the config, and no learner has it as a parameter."""
LONG_SECONDS = 24 * 3600
SLACK_SECONDS = 1.0
"""The group ends by itself when its time is over. It gets so much longer to say what went wrong."""
SHOWN = 3

Specs = dict[str, tuple[str, tuple[int, ...]]]
"""Of each tensor, by its name: the dtype as safetensors spells it, and the shape."""


class RefusedUpdate(Exception):  # noqa: N818 (it is no error of this server)
    """An update that must not be loaded. The model has not been touched."""


class WeightLoader:
    """Methods for vLLM's worker class. The attributes are the worker's own."""

    model_config: Any
    parallel_config: Any
    load_config: Any
    rank: int
    device: torch.device
    get_model: Callable[[], torch.nn.Module]
    reload_weights: Callable[..., None]
    _loopwright_lost: str
    _loopwright_holder: tuple[str, int]
    _loopwright_until: float
    _loopwright_checkpoint: Specs

    def loopwright_about(self, text: str) -> dict[str, Any]:
        """What the caller must know before it trains with this server. `refuses` says why updates are refused, or is
        None. With `{"tensors": …}` in `text`, a manifest's tensors, it also says why an update with those would be."""
        refuses: str | None = None
        try:
            expected = _expected(self)
            if "tensors" in (told := json.loads(text)):
                _compare(_specs(told["tensors"]), expected, _tied(self))
        except Exception as error:
            refuses = _words(error)
        return {
            "extension": VERSION,
            "dtype": str(self.model_config.dtype).removeprefix("torch."),
            "tied": _tied(self),
            "moe": bool(self.model_config.is_moe),
            "rank": self.rank,
            "world_size": self.parallel_config.world_size,
            "device": str(self.device),
            "refuses": refuses,
        }

    def loopwright_load_weights(self, text: str) -> dict[str, Any]:
        """Load one update. The answer has `status`, and `why` unless it is `loaded`."""
        begun = time.perf_counter()
        if lost := getattr(self, "_loopwright_lost", None):
            return {"status": "lost", "why": f"an earlier update failed: {lost}", "touched": True}
        try:
            update = json.loads(text)
            _check_holder(self, update.get("holder"))
            manifest = update["file"]
            expected = _expected(self)
            wanted = _specs(manifest["tensors"])
            _compare(wanted, expected, _tied(self))
            if "broadcast" in update:
                data = _received(update["broadcast"], manifest["bytes"], 1 + self.rank, self.device)
            else:
                data = _read(Path(manifest["path"]), manifest["bytes"])
            if (found := _checksum(data)) != manifest["checksum"]:
                raise RefusedUpdate(f"its checksum is {found} instead of {manifest['checksum']}")
            tensors = _tensors(data, wanted)
        except Exception as error:
            return {"status": "refused", "why": _words(error), "touched": False}
        try:
            self.reload_weights(weights_iterator=iter(tensors.items()))
            if _tied(self):
                _rebuild_head(self.get_model())
        except Exception as error:
            self._loopwright_lost = _words(error)
            return {"status": "lost", "why": self._loopwright_lost, "touched": True}
        return {
            "status": "loaded",
            "seconds": time.perf_counter() - begun,
            "tensors": len(tensors),
            "checksum": found,
            "touched": True,
        }

    def loopwright_lease(self, text: str) -> dict[str, Any]:
        """Give the server's weights to one run at a time: `{"run", "lineage", "seconds", "renews"}`. A later lineage of
        the same run takes over at once. `unknown`: it `renews` a lease that this start of the server never gave. With 0
        seconds the lease ends."""
        asked = json.loads(text)
        try:
            _check_holder(self, asked)
        except RefusedUpdate as error:
            return {"status": "refused", "why": str(error)}
        if asked["renews"] and not hasattr(self, "_loopwright_holder"):
            return {"status": "unknown"}
        self._loopwright_holder = asked["run"], asked["lineage"]
        self._loopwright_until = time.monotonic() + asked["seconds"]
        return {"status": "held"}


def _check_holder(worker: WeightLoader, asking: Mapping[str, Any] | None) -> None:
    """Refuse whoever is not the run that holds the lease, while it lives."""
    left = getattr(worker, "_loopwright_until", 0.0) - time.monotonic()
    if left <= 0:
        return
    run, lineage = worker._loopwright_holder
    if asking is None or asking["run"] != run or asking["lineage"] < lineage:
        raise RefusedUpdate(
            f"run {run} (lineage {lineage}) holds this server for another {left:.0f} s, unless it renews its lease"
        )


def _tied(worker: WeightLoader) -> bool:
    """Whether the output layer is the input embedding."""
    return bool(getattr(worker.model_config.hf_text_config, "tie_word_embeddings", False))


def _rebuild_head(model: torch.nn.Module) -> None:
    """vLLM's CPU build computes logits from a packed copy of the weights. `reload_weights` does not renew it if the
    output layer is tied, because no tensor of the update has its name. Elsewhere this does nothing."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "lm_head" and hasattr(module, "quant_method"):
            module.quant_method.process_weights_after_loading(module)


def _expected(worker: WeightLoader) -> Specs:
    """The tensors of the checkpoint that the server was started from. They are read once, because its files may be gone
    later."""
    if worker.model_config.is_moe and worker.device.type == "cpu":
        raise RefusedUpdate("vLLM's CPU build serves wrong outputs after a reload of a mixture of experts")
    if worker.parallel_config.data_parallel_size > 1:
        raise RefusedUpdate("the server is several replicas behind one address; start one server for each")
    if not hasattr(worker, "_loopwright_checkpoint"):
        worker._loopwright_checkpoint = {
            name: spec for file in _checkpoint_files(worker) for name, spec in _header(file).items()
        }
    return worker._loopwright_checkpoint


def _checkpoint_files(worker: WeightLoader) -> list[Path]:
    model = worker.model_config.model
    if not os.path.isdir(model):
        from huggingface_hub import snapshot_download

        cache = worker.load_config.download_dir
        model = snapshot_download(model, revision=worker.model_config.revision, cache_dir=cache, local_files_only=True)
    folder = Path(model)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise RefusedUpdate(f"{folder} has no safetensors files, so the names of its tensors are not known")
    return files


def _header(file: Path) -> Specs:
    with file.open("rb") as opened:
        return _specs(json.loads(opened.read(int.from_bytes(opened.read(PREAMBLE), "little"))))


def _specs(tensors: Mapping[str, Any]) -> Specs:
    """From the header of a safetensors file, or from a manifest."""
    return {name: (one["dtype"], tuple(one["shape"])) for name, one in tensors.items() if name != "__metadata__"}


def _compare(update: Specs, expected: Specs, tied: bool) -> None:
    """Refuse what does not fit the checkpoint. The dtype may differ: vLLM converts what it loads."""
    needless = {name for name in expected if name.endswith(COMPUTED) or (tied and name == "lm_head.weight")}
    if unknown := sorted(update.keys() - expected.keys()):
        raise RefusedUpdate(f"the model has no {_some(unknown)}")
    if missing := sorted(expected.keys() - update.keys() - needless):
        raise RefusedUpdate(f"it has no {_some(missing)}")
    for name, (dtype, shape) in update.items():
        if shape != expected[name][1]:
            raise RefusedUpdate(f"{name} has shape {list(shape)} instead of {list(expected[name][1])}")
        if dtype not in DTYPES:
            raise RefusedUpdate(f"{name} has dtype {dtype}, and only {', '.join(DTYPES)} can be loaded")


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _read(file: Path, size: int) -> torch.Tensor:
    """A copy of the file's bytes: whatever happens to the file from now on, what was checked is what is loaded."""
    with file.open("rb", buffering=0) as opened:
        if (found := os.fstat(opened.fileno()).st_size) != size:
            raise RefusedUpdate(f"it has {found:,} bytes instead of {size:,}")
        data = torch.empty(size, dtype=torch.uint8)
        for part in _parts(data, BLOCK):
            view = part.numpy().data
            while view:
                if not (count := opened.readinto(view)):
                    raise RefusedUpdate("it became shorter while it was read")
                view = view[count:]
    return data


def _received(told: Mapping[str, Any], size: int, rank: int, device: torch.device) -> torch.Tensor:
    """The bytes that rank 0 broadcasts. It takes `seconds` at most.

    The thread is for the sake of this limit: a store that accepts a connection and says nothing holds its client for
    ever. Such a thread stays, and has no weights yet.
    """
    result: queue.SimpleQueue[torch.Tensor | Exception] = queue.SimpleQueue()
    deadline = time.monotonic() + told["seconds"]

    def receive() -> None:
        try:
            result.put(_receive(told, size, rank, device, deadline))
        except Exception as error:
            result.put(error)

    threading.Thread(target=receive, name="loopwright-receive", daemon=True).start()
    try:
        received = result.get(timeout=told["seconds"] + SLACK_SECONDS)
    except queue.Empty:
        raise _late(told) from None
    if isinstance(received, Exception):
        raise received
    return received


def _receive(told: Mapping[str, Any], size: int, rank: int, device: torch.device, deadline: float) -> torch.Tensor:
    """Over a group that lives as long as this call. vLLM's own default group is left alone."""

    def left() -> timedelta:
        if (seconds := deadline - time.monotonic()) <= 0:
            raise _late(told)
        return timedelta(seconds=seconds)

    client = distributed.TCPStore(told["host"], told["port"], is_master=False, timeout=left(), wait_for_workers=False)
    store = distributed.PrefixStore(told["name"], client)
    group: Any
    if told["backend"] == "gloo":
        gloo = distributed.ProcessGroupGloo._Options()
        gloo._devices = [distributed.ProcessGroupGloo.create_device(hostname=_own_address(told["host"], told["port"]))]
        gloo._timeout = left()
        group, device = distributed.ProcessGroupGloo(store, rank, told["size"], gloo), torch.device("cpu")
    else:
        # NCCL's own watchdog ends the process when the group's time is over. `wait` below ends the call instead.
        nccl = distributed.ProcessGroupNCCL.Options()
        nccl._timeout = timedelta(seconds=LONG_SECONDS)
        group = distributed.ProcessGroupNCCL(store, rank, told["size"], nccl)
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    data = torch.empty(size, dtype=torch.uint8)
    for part in _parts(data, told["bucket_bytes"]):
        bucket = part.to(device)
        group.broadcast([bucket], options).wait(left())
        if bucket is not part:
            part.copy_(bucket)
    return data


def _late(told: Mapping[str, Any]) -> RefusedUpdate:
    return RefusedUpdate(f"it was not here within {told['seconds']:g} s")


def _own_address(host: str, port: int) -> str:
    """The address of this machine that reaches `host`. A connected UDP socket knows it; nothing is sent."""
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _parts(data: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _checksum(data: torch.Tensor) -> str:
    value = 0
    for part in _parts(data, BLOCK):
        value = zlib.crc32(part.numpy().data, value)
    return f"crc32:{value:08x}"


def _tensors(data: torch.Tensor, wanted: Specs) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file in memory: views of its bytes where their alignment allows it."""
    start = PREAMBLE + int.from_bytes(data[:PREAMBLE].numpy().tobytes(), "little")
    header = json.loads(data[PREAMBLE:start].numpy().tobytes())
    if _specs(header) != wanted:
        raise RefusedUpdate("its tensors are not those of its manifest")
    tensors: dict[str, torch.Tensor] = {}
    for name, (dtype, shape) in wanted.items():
        first, last = header[name]["data_offsets"]
        part = data[start + first : start + last]
        if part.storage_offset() % DTYPES[dtype].itemsize:
            part = part.clone()
        tensors[name] = part.view(DTYPES[dtype]).view(shape)
    return tensors


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, RefusedUpdate) else f"{type(error).__name__}: {error}"
