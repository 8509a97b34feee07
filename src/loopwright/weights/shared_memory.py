"""Learner and engines in separate processes on one machine. Weights travel through a file in shared memory.

The file of the engines' present version stays until they have a newer one, because an engine that is started again
loads it. If an update fails, the engines keep their weights, and this file stays.
"""

from __future__ import annotations

from pathlib import Path

from loopwright.ports import Engine, Learner


class SharedMemoryWeights:
    """Writes the learner's weights to `folder`, and has the engines load them."""

    def __init__(self, learner: Learner, engine: Engine, folder: Path) -> None:
        self._learner = learner
        self._engine = engine
        self._folder = folder

    async def publish(self, version: int) -> None:
        file = self._folder / f"weights-{version}.safetensors"
        manifest = await self._learner.write_weights(file)
        await self._engine.load(version, manifest)
        for old in self._folder.iterdir():
            if old != file:
                old.unlink()
