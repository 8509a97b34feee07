"""Learner and engine in one process with the same parameters. Publishing copies nothing."""

from __future__ import annotations

from loopwright.ports import Engine


class SharedWeights:
    """The learner has already changed the engine's parameters, so only the new version is reported."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish(self, version: int) -> None:
        await self._engine.load(version)
