"""Learner and engine in one process, on the same parameters: publishing copies nothing."""

from __future__ import annotations

from loopwright.ports import Engine


class SharedWeights:
    """The learner has already changed the engine's parameters; only their version has to be told."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish(self, version: int) -> None:
        await self._engine.load(version)
