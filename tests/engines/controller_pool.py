"""A pool of engines that count, and ways to ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from counting import PART, Nursery

from loopwright.engines.controller import RolloutController
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling, WeightFile

PROMPT = tuple(range(5))
FILE = WeightFile("/nowhere/weights", 1, "crc32:0", {})


def ask(id: str = "a/0", tokens: int = 40, *, resumable: bool = False, affinity: str = "") -> GenerateRequest:
    return GenerateRequest(id, PROMPT, Sampling(max_new_tokens=tokens), resumable, affinity=affinity)


def whole(generation: Generation, tokens: int = 40) -> bool:
    """Every token once, in its place, and in the order of versions."""
    return (
        generation.ids == tuple(range(len(PROMPT), len(PROMPT) + tokens))
        and len(generation.versions) == len(generation.logprobs) == tokens
        and generation.finish is FinishReason.LENGTH
        and tuple(sorted(generation.versions)) == generation.versions
    )


@asynccontextmanager
async def pool(*nurseries: Nursery, **options: Any) -> AsyncIterator[RolloutController]:
    async with asyncio.timeout(20), RolloutController.open([n.launch for n in nurseries], **options) as controller:
        yield controller


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def under_way(nursery: Nursery) -> None:
    """Wait until the youngest engine has shown some of its tokens."""
    await until(lambda: nursery.engines[-1].counted >= 2 * PART)


def start(controller: RolloutController, *requests: GenerateRequest) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(controller.generate(request)) for request in requests]
