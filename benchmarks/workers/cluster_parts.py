"""What the actors of `cluster` hold: rollouts that are made without a model, and callers of a door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import numpy as np

from loopwright.engines.http.client import HttpEngine
from loopwright.types import (
    Episode,
    GenerateRequest,
    Rollout,
    RolloutRequest,
    Sampling,
    Timing,
    TokenChain,
    Unscored,
)

PROMPT = tuple(range(64))


class ScriptedRollouts:
    """Rollouts of so many tokens, made at once."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    async def same(self, value: int) -> int:
        return value

    async def run(self, request: RolloutRequest) -> Rollout:
        tokens = self._tokens
        mask = np.arange(tokens) >= tokens // 8
        chain = TokenChain(
            np.arange(tokens, dtype=np.int32),
            mask,
            np.where(mask, np.float32(-0.5), np.float32(0.0)),
            np.where(mask, np.int32(3), np.int32(-1)),
        )
        answer = {"role": "assistant", "content": "7"}
        episode = Episode((*request.task.messages, answer), (chain,))
        return Rollout(request.key, request.task, episode, Unscored(), Timing(0.0))


class DoorCaller:
    """Asks at a run's door."""

    def __init__(self, engine: HttpEngine) -> None:
        self._engine = engine

    async def ask(self, calls: int, in_flight: int) -> None:
        numbers = iter(range(calls))
        async with asyncio.TaskGroup() as callers:
            for _ in range(in_flight):
                callers.create_task(self._ask(numbers))

    async def _ask(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self._engine.generate(GenerateRequest(f"{number}/0", PROMPT, Sampling()))


@asynccontextmanager
async def scripted_rollouts(tokens: int) -> AsyncIterator[ScriptedRollouts]:
    yield ScriptedRollouts(tokens)


@asynccontextmanager
async def door_caller(url: str, key: str) -> AsyncIterator[DoorCaller]:
    async with HttpEngine.connect(url, key) as engine:
        yield DoorCaller(engine)
