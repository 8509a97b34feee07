"""Learner and engines in separate processes. Weights travel through a file in shared memory.

The file of the engines' present version stays until they were proven to have a newer one, because an engine that is
started again loads it. If an update fails, the engines keep their weights, and this file stays.

Two files are used in turn: the one before the present version is overwritten by the next, because that is faster than
filling fresh memory. So there are always two of them, as there must be room for two during an update anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loopwright.models.weight_files import WeightFileWriter
from loopwright.ports import Engine, Learner
from loopwright.types import WeightFile
from loopwright.weights.proof import WeightProof
from loopwright.weights.volume import BYTES


class SharedMemoryWeights:
    """Writes the learner's weights to `folder`, and has the engines load them."""

    def __init__(self, learner: Learner, engine: Engine, folder: Path, proof: WeightProof) -> None:
        self._learner = learner
        self._engine = engine
        self._folder = folder
        self._proof = proof
        self._present: Path | None = None
        self._spare: Path | None = None

    async def publish(self, version: int) -> Mapping[str, float]:
        written = await self._written(self._folder / f"weights-{version}.safetensors")
        async with self._proof.of(version) as differences:
            await self._engine.load(version, written)
        self._keep(Path(written.path))
        return {**differences, BYTES: written.bytes}

    async def _written(self, file: Path) -> WeightFile:
        writer = WeightFileWriter(file, self._spare)
        try:
            await self._learner.publish(writer)
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def _keep(self, proven: Path) -> None:
        """Nobody needs the file of the version before any more. A folder belongs to an engine that is loading."""
        if self._present != proven:
            self._present, self._spare = proven, self._present
        for file in self._folder.iterdir():
            if file not in (self._present, self._spare) and not file.is_dir():
                file.unlink()
