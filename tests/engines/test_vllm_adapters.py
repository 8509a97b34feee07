"""How a vLLM server gets adapters: each version by its own name and folder, and every request asks for it by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_pool import ask
from safetensors.torch import load_file

from loopwright.engines.http.connection import Connections, Patience
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.engine import VllmEngine
from loopwright.engines.vllm.process import VllmServer, vllm_command, vllm_environment
from loopwright.engines.vllm.wire import request_to_vllm, score_request
from loopwright.errors import EngineLostError, UnanswerableError, WeightsError
from loopwright.testing.weight_file import weight_file
from loopwright.types import WeightFile

LAYER = "model.layers.0.self_attn.q_proj"


class Server:
    """What the adapter asks, in place of its `EngineCaller`: a server that keeps adapters by their names."""

    url = "http://vllm"
    patience = Patience(60.0)

    def __init__(self) -> None:
        self.adapters: dict[str, dict[str, torch.Tensor]] = {}
        self.configs: dict[str, Any] = {}
        self.most = 0
        self.fails: Exception | None = None
        self.label = ""

    async def text(self, method: str, path: str, body: Any, patience: Patience) -> bytes:
        match path:
            case "/v1/load_lora_adapter":
                if self.fails is not None:
                    raise self.fails
                assert body["lora_name"] not in self.adapters, "vLLM answers 400"
                folder = Path(body["lora_path"])
                assert folder.name == body["lora_name"]
                self.adapters[folder.name] = load_file(folder / "adapter_model.safetensors")
                self.configs[folder.name] = json.loads((folder / "adapter_config.json").read_text())
                self.most = max(self.most, len(self.adapters))
            case "/v1/unload_lora_adapter":
                del self.adapters[body["lora_name"]]
            case "/update_weight_version":
                self.label = body["new_version"]
        return b""

    async def asked(self, method: str, path: str, body: Any, patience: Patience) -> Any:
        return {"results": [{"status": "loaded"}]}


def engine_of(server: Server) -> VllmEngine:
    engine = VllmEngine(Connections("http://127.0.0.1:9", None), VersionLabels("run", 3))
    engine._caller = server  # type: ignore[assignment]
    return engine


def adapter(folder: Path, number: float) -> WeightFile:
    tensors = {f"{LAYER}.lora_A.weight": torch.full((4, 6), float(number)), f"{LAYER}.lora_B.weight": torch.ones(8, 4)}
    return weight_file(tensors, folder / f"weights-{number:g}.safetensors")


def folders_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


def damage(file: WeightFile) -> None:
    Path(file.path).write_bytes(bytes(file.bytes))


async def test_each_version_has_its_own_name_and_folder_and_the_one_before_is_forgotten(tmp_path: Path) -> None:
    server = Server()
    engine = engine_of(server)
    for version in range(4):
        await engine.load(version, adapter(tmp_path, version))
        (name,) = server.adapters
        assert name == f"run-3-v{version}" == engine._adapters.name
        assert float(server.adapters[name][f"{LAYER}.lora_A.weight"][0, 0]) == version
        assert server.configs[name]["r"] == server.configs[name]["lora_alpha"] == 4, "the scale is in B"
        assert server.configs[name]["target_modules"] == ["q_proj"]
        assert server.label == f"run:3:{version}"
    assert server.most == 2
    assert len(folders_in(tmp_path)) == 1, "only that of the version that is served"


async def test_a_version_that_is_loaded_again_gets_a_new_name(tmp_path: Path) -> None:
    server = Server()
    engine = engine_of(server)
    names = []
    for number in (1.0, 2.0, 3.0):
        await engine.load(1, adapter(tmp_path, number))
        names += list(server.adapters)
    assert len(set(names)) == 3
    assert float(server.adapters[names[-1]][f"{LAYER}.lora_A.weight"][0, 0]) == 3


async def test_an_adapter_that_is_refused_leaves_the_one_before(tmp_path: Path) -> None:
    server = Server()
    engine = engine_of(server)
    await engine.load(1, adapter(tmp_path, 1))
    server.fails = UnanswerableError("rank 99 is too large", remedy="")
    with pytest.raises(WeightsError, match="rank 99 is too large; nothing was changed"):
        await engine.load(2, adapter(tmp_path, 2))
    assert (engine.version, engine._adapters.name) == (1, "run-3-v1")
    assert len(folders_in(tmp_path)) == 1


async def test_a_damaged_file_is_not_shown_to_the_server(tmp_path: Path) -> None:
    server = Server()
    file = adapter(tmp_path, 1)
    damage(file)
    with pytest.raises(WeightsError, match="nothing was changed"):
        await engine_of(server).load(1, file)
    assert not server.adapters


async def test_a_server_that_fails_meanwhile_is_lost(tmp_path: Path) -> None:
    server = Server()
    server.fails = EngineLostError("gone", remedy="")
    with pytest.raises(EngineLostError):
        await engine_of(server).load(1, adapter(tmp_path, 1))


async def test_whole_weights_end_the_adapters(tmp_path: Path) -> None:
    server = Server()
    engine = engine_of(server)
    await engine.load(1, adapter(tmp_path, 1))
    await engine.load(2, weight_file({"model.norm.weight": torch.ones(4)}, tmp_path / "whole"))
    assert not server.adapters
    assert engine._adapters.name is None


def test_every_request_names_its_adapter() -> None:
    request = ask("r")
    assert request_to_vllm(request, "r", None, "run-3-v1")["model"] == "run-3-v1"
    assert score_request(request, None, "run-3-v1")["model"] == "run-3-v1"
    assert "model" not in request_to_vllm(request, "r", None)


@pytest.mark.parametrize(("rank", "room"), [(1, "1"), (9, "16"), (16, "16"), (300, "320")])
def test_a_server_is_started_with_room_for_two_adapters(tmp_path: Path, rank: int, room: str) -> None:
    options: Any = {"dtype": "float32", "max_context": 8, "max_batch": 1, "args": (), "env": {}, "cores": ()}
    options |= {"log": tmp_path, "state": tmp_path, "start_seconds": 1.0}
    server = VllmServer("vllm", "model", **options, adapter_rank=rank)
    command = vllm_command(server)
    at = command.index("--enable-lora")
    assert command[at : at + 5] == ["--enable-lora", "--max-lora-rank", room, "--max-loras", "2"]
    assert vllm_environment(server, {})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    plain = VllmServer("vllm", "model", **options)
    assert "--enable-lora" not in vllm_command(plain)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in vllm_environment(plain, {})
