"""A fake SGLang server with a client, and what its model really computes under each version of its weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from loopwright.testing.sglang_server import Options, SglangServer, serve_sglang

PROMPT = tuple(range(5, 45))
CLOSE = 1e-4
APART = 1e-2
LONG = 900


class Truth:
    """The model by itself. Version 0 is the model as it is; every other one differs in all of its parameters."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        first = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self.versions = [first]
        for version in (1, 2):
            random = torch.Generator().manual_seed(version)
            self.versions.append({n: t + 0.1 * torch.randn(t.shape, generator=random) for n, t in first.items()})

    def write(self, folder: Path, version: int) -> str:
        """A folder with the weights of a version, and nothing else."""
        made = folder / f"v{version}"
        made.mkdir(exist_ok=True)
        save_file(self.versions[version], made / "model.safetensors")
        return str(made)

    @torch.no_grad()
    def logprobs(self, version: int, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
        """[tokens, vocabulary]: after each token."""
        for name, parameter in self._model.named_parameters():
            parameter.copy_(self.versions[version][name])
        logits: torch.Tensor = self._model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return (logits.double() / temperature).log_softmax(-1)

    def error(self, version: int, prompt: Sequence[int], answer: Any, temperature: float = 1.0) -> float:
        """How far the logprobs of an answer are from those of a version, at most."""
        ids = answer["output_ids"]
        rows = self.logprobs(version, [*prompt, *ids], temperature)[len(prompt) - 1 :]
        told = answer["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in told] == ids
        return max(abs(float(rows[i, token]) - float(logprob)) for i, (logprob, token, _) in enumerate(told))


@dataclass(frozen=True)
class Scene:
    server: SglangServer
    client: httpx.AsyncClient
    folder: Path
    truth: Truth

    async def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return await self.client.post(path, json={} if body is None else body, **more)

    async def ask(self, tokens: int = 8, *, prompt: Sequence[int] = PROMPT, sampling: Any = None, **fields: Any) -> Any:
        response = await self.post("/generate", asking(tokens, prompt=prompt, sampling=sampling, **fields))
        assert response.status_code == 200, response.text
        return response.json()

    async def events(self, tokens: int = 8, **fields: Any) -> list[Any]:
        body = asking(tokens, stream=True, **fields)
        async with self.client.stream("POST", "/generate", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    async def running(self, *asked: Awaitable[Any], tokens: int = 1) -> list[asyncio.Task[Any]]:
        """Calls that are under way: the server has sampled for all of them."""
        before = self.server.scheduler.sampled
        tasks = [asyncio.ensure_future(one) for one in asked]
        await until(lambda: self.server.scheduler.sampled >= before + tokens * len(tasks))
        await until(lambda: len(self.server.scheduler.running) >= len(tasks))
        return tasks

    async def update(self, version: int, **fields: Any) -> httpx.Response:
        path = self.truth.write(self.folder, version)
        return await self.post("/update_weights_from_disk", {"model_path": path, **fields})

    async def safe_update(self, version: int) -> None:
        """The recipe that SGLang's source supports."""
        assert (await self.post("/pause_generation", {"mode": "abort"})).status_code == 200
        assert (await self.update(version, flush_cache=False, weight_version=f"v{version}")).json()["success"]
        assert (await self.post("/flush_cache?timeout=5")).status_code == 200
        assert (await self.post("/continue_generation")).status_code == 200

    async def dies(self, asked: Awaitable[Any]) -> None:
        """The call is answered by a closed connection, and nobody listens any more."""
        try:
            await asked
            raise AssertionError("the server answered")
        except httpx.TransportError:
            pass
        assert self.server.dead.is_set()
        try:
            await self.client.get("/model_info")
            raise AssertionError("the server listens")
        except httpx.TransportError:
            pass


def asking(tokens: int, *, prompt: Sequence[int] = PROMPT, sampling: Any = None, **fields: Any) -> Any:
    params = {"max_new_tokens": tokens, "ignore_eos": True, **(sampling or {})}
    return {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True, **fields}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def sglang_scene(
    folder: Path, tmp_path: Path, options: Options | None = None, **headers: str
) -> AsyncIterator[Scene]:
    async with (
        serve_sglang(folder, options) as server,
        httpx.AsyncClient(base_url=server.url, timeout=20, headers=headers) as client,
    ):
        yield Scene(server, client, tmp_path, Truth(folder))
