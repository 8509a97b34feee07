"""The limit of a controller: each request goes straight to the next of the engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

from benchmarks.workers.pool_round import serve
from benchmarks.workers.port import Port
from loopwright.ports import ModelClient
from loopwright.testing import ScriptedEngine
from loopwright.types import GenerateRequest, Generation


class InTurn:
    def __init__(self, engines: list[ScriptedEngine]) -> None:
        self._next = cycle(engines)

    async def generate(self, request: GenerateRequest) -> Generation:
        return await next(self._next).generate(request)


@asynccontextmanager
async def straight(engines: list[ScriptedEngine]) -> AsyncIterator[ModelClient]:
    yield InTurn(engines)


if __name__ == "__main__":
    serve(Port(), straight)
