"""A real vLLM server behind the engine's port and the gateway: its tokens and logprobs are those of the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import torch
from guarded_vllm import guarded_vllm
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM

from loopwright.build.gateway import serve_gateway
from loopwright.build.remote import RemoteEngine
from loopwright.engines.vllm.engine import VllmEngine
from loopwright.gateway.server import Address
from loopwright.models.smollm2 import smollm2_folder
from loopwright.types import FinishReason, GenerateRequest, PauseMode, Sampling, ServerKind, Thinking

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CACHE = Path.home() / ".cache" / "loopwright" / "models"
KEY = "the-gateways-own-key"
CLOSE = 2e-3
"""How far a logprob may be from the model's own, computed by other kernels in another order."""


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2_folder(CACHE)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guarded_vllm(model, tmp_path_factory.mktemp("vllm"), "--max-model-len", "2048") as server:
        yield server.url


@pytest.fixture(scope="module")
def reference(model: Path) -> torch.nn.Module:
    loaded: torch.nn.Module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return loaded.eval()


@torch.no_grad()
def logprobs_of(reference: torch.nn.Module, ids: list[int], temperature: float = 1.0) -> list[float]:
    """Of every token but the first, given those before it."""
    logits = reference(torch.tensor([ids])).logits[0, :-1] / temperature
    found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return found


PROMPT = tuple(range(300, 340))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_that_tokens_were_sampled_with(
    url: str, reference: torch.nn.Module, temperature: float
) -> None:
    parts: list[int] = []
    async with VllmEngine.connect(url, None) as engine:
        request = GenerateRequest("one", PROMPT, Sampling(temperature=temperature, max_new_tokens=24, seed=3))
        generation = await engine.generate(request, on_part=lambda part: parts.append(len(part.ids)))
    assert generation.versions == (0,) * len(generation.ids)
    assert generation.finish in (FinishReason.LENGTH, FinishReason.STOP)
    assert sum(parts) >= len(generation.ids) - parts[-1], "tokens are shown early"
    expected = logprobs_of(reference, [*PROMPT, *generation.ids], temperature)[len(PROMPT) - 1 :]
    assert generation.logprobs == pytest.approx(expected, abs=CLOSE)


async def test_many_at_once_are_as_many_samples(url: str, reference: torch.nn.Module) -> None:
    """Each request has a seed of its own, as those of a run have."""
    async with VllmEngine.connect(url, None) as engine:
        asked = [GenerateRequest(str(n), PROMPT, Sampling(max_new_tokens=8, seed=n)) for n in range(24)]
        generations = await asyncio.gather(*map(engine.generate, asked))
    assert len({generation.ids for generation in generations}) > 12
    for generation in generations[:4]:
        expected = logprobs_of(reference, [*PROMPT, *generation.ids])[len(PROMPT) - 1 :]
        assert generation.logprobs == pytest.approx(expected, abs=CLOSE)


async def test_a_pause_hands_back_what_there_is_and_the_rest_goes_on_from_it(
    url: str, reference: torch.nn.Module
) -> None:
    greedy = Sampling(temperature=0.0, max_new_tokens=400)
    async with VllmEngine.connect(url, None) as engine:
        started = asyncio.Event()
        going = asyncio.create_task(
            engine.generate(GenerateRequest("long", PROMPT, greedy), on_part=lambda part: started.set())
        )
        await asyncio.wait_for(started.wait(), 120)
        await engine.pause(PauseMode.ABORT)
        first = await asyncio.wait_for(going, 60)
        await engine.resume()
        assert first.finish is FinishReason.ABORT
        assert 0 < len(first.ids) < greedy.max_new_tokens
        rest = Sampling(temperature=0.0, max_new_tokens=8)
        second = await engine.generate(GenerateRequest("rest", (*PROMPT, *first.ids), rest))
    whole = [*PROMPT, *first.ids, *second.ids]
    expected = logprobs_of(reference, whole)[len(PROMPT) - 1 :]
    assert [*first.logprobs, *second.logprobs] == pytest.approx(expected, abs=CLOSE)


async def test_a_cancelled_call_frees_the_server(url: str) -> None:
    async with VllmEngine.connect(url, None) as engine:
        started = asyncio.Event()
        long = GenerateRequest("gone", PROMPT, Sampling(max_new_tokens=1500))
        going = asyncio.create_task(engine.generate(long, on_part=lambda part: started.set()))
        await asyncio.wait_for(started.wait(), 120)
        going.cancel()
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=url, trust_env=False) as client:
            while "vllm:num_requests_running{" in (text := (await client.get("/metrics")).text):
                running = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
                if all(line.endswith(" 0.0") for line in running):
                    return
                await asyncio.sleep(0.2)
    pytest.fail("vLLM does not say what is running")


@asynccontextmanager
async def session(url: str, folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncOpenAI]]:
    behind = RemoteEngine(url, None, None, CACHE, kind=ServerKind.VLLM)
    async with serve_gateway(
        behind,
        Address(),
        store=folder / "gateway.sqlite",
        key="the-gateways-own-key",
        renderer="auto",
        thinking=Thinking.KEEP,
    ) as gateway:
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=gateway.base_url, headers=headers, trust_env=False) as admin:
            created = (await admin.post("/sessions/session-1")).raise_for_status().json()
            base = f"{gateway.base_url}/sessions/session-1/v1"
            async with AsyncOpenAI(base_url=base, api_key=created["key"]) as client:
                yield admin, client


async def test_an_agent_talks_to_it_through_the_gateway(url: str, reference: torch.nn.Module, tmp_path: Path) -> None:
    messages: list[dict[str, str]] = []
    async with session(url, tmp_path) as (admin, client):
        for number, question in enumerate(["Name the capital of France.", "And of Italy?", "Which is larger?"]):
            messages.append({"role": "user", "content": question})
            wish = {"model": "any", "messages": messages, "max_tokens": 24, "temperature": 0.8}
            if number == 1:
                stream = await client.chat.completions.create(**wish, stream=True)
                texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
                assert len(texts) > 2, "it streams"
                answer = "".join(texts)
            else:
                answer = (await client.chat.completions.create(**wish)).choices[0].message.content
            messages.append({"role": "assistant", "content": answer})
        (chain,) = (await admin.get("/sessions/session-1/chains")).raise_for_status().json()["chains"]
    expected = [0.0, *logprobs_of(reference, chain["ids"], 0.8)]
    sampled = [i for i, one in enumerate(chain["mask"]) if one]
    assert len(sampled) > 20
    assert [chain["logprobs"][i] for i in sampled] == pytest.approx([expected[i] for i in sampled], abs=CLOSE)
