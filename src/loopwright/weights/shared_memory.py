"""Learner and engines in processes of their own, on one machine: weights go through a file in shared memory.

The file of the version that the engines have stays until they have a newer one: an engine that has to be started again
loads it. A weight update that fails leaves the engines as they are, and this file where it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopwright.errors import WeightsError
from loopwright.ports import Engine, Learner

SHARED_MEMORY = Path("/dev/shm")
"""A folder in memory on Linux. Elsewhere the run folder does."""


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


@contextmanager
def weights_folder(run_folder: Path, shared_memory: Path = SHARED_MEMORY) -> Iterator[Path]:
    """A private folder for the weights of the run in `run_folder`, in memory if there is any.

    It is the same for every start of the run, which must be locked: what a killed one left in memory is freed.
    """
    folder = run_folder / "weights"
    if os.access(shared_memory, os.W_OK | os.X_OK):
        name = hashlib.blake2b(str(run_folder.resolve()).encode(), digest_size=8).hexdigest()
        folder = shared_memory / f"loopwright-{os.getuid()}-{name}"
    try:
        _remove(folder)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise WeightsError(
            f"the folder {folder} for weights cannot be made: {error}",
            remedy="free some space there, or remove what is in its place",
        ) from error
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)
