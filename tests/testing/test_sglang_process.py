"""The fake SGLang as a process: it says where it is, receives broadcasts, and ends when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from sglang_scene import CLOSE, PROMPT, Truth, asking

from loopwright.testing.sglang.groups import WeightGroup

pytestmark = pytest.mark.real


@asynccontextmanager
async def server_process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loopwright.testing.sglang_server", "--model", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            said: dict[str, Any] = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=f"http://{said['host']}:{said['port']}", timeout=30) as client:
            yield process, client
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_weights_can_be_broadcast_and_a_wrong_shape_is_told(tiny_llama_folder: Path) -> None:
    truth, port = Truth(tiny_llama_folder), free_port()
    async with server_process(tiny_llama_folder) as (_, client):
        join = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": 2,
            "backend": "gloo",
        }
        joining = asyncio.ensure_future(client.post("/init_weights_update_group", json=join))
        group = await asyncio.to_thread(WeightGroup, "127.0.0.1", port, 0, 2, "weight_update_group", "gloo")
        assert (await joining).json() == {"success": True, "message": "Succeeded to initialize custom process group."}

        async def broadcast(tensors: dict[str, torch.Tensor], **fields: Any) -> httpx.Response:
            body = {
                "names": list(tensors),
                "dtypes": ["float32"] * len(tensors),
                "shapes": [list(tensor.shape) for tensor in tensors.values()],
                **fields,
            }
            updating = asyncio.ensure_future(client.post("/update_weights_from_distributed", json=body))
            await asyncio.to_thread(group.send, list(tensors.values()))
            return await updating

        response = await broadcast(truth.versions[1], weight_version="v1")
        assert response.json()["message"] == "Succeeded to update parameter online. Weight version updated to v1."
        answer = (await client.post("/generate", json=asking(8))).json()
        assert truth.error(1, PROMPT, answer) < CLOSE
        wrong = await broadcast({"model.norm.weight": torch.ones(3)})
        assert (wrong.status_code, "discard the whole weights" in wrong.json()["message"]) == (400, True)
        group.close()


async def test_a_server_that_dies_ends_its_process(tiny_llama_folder: Path) -> None:
    async with server_process(tiny_llama_folder) as (process, client):
        with pytest.raises(httpx.TransportError):
            await client.post("/resume_memory_occupation", json={})
        async with asyncio.timeout(20):
            assert await process.wait() == 1
