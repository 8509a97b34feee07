"""Shows a weight file to SGLang, which reads whole folders."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loopwright.errors import WeightsError
from loopwright.types import WeightFile


@asynccontextmanager
async def folder_of(file: WeightFile) -> AsyncIterator[Path]:
    """A folder beside the file, with a link to it. Raises WeightsError if the file is gone or damaged: SGLang checks
    nothing, and dies of a damaged one."""
    folder = await asyncio.to_thread(_linked, file)
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _linked(file: WeightFile) -> Path:
    # It imports torch, which a process that only samples does not need.
    from loopwright.models.weight_files import read_weights

    read_weights(file)
    path = Path(file.path).absolute()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent))
        (folder / "model.safetensors").symlink_to(path)
    except OSError as error:
        raise WeightsError(
            f"the weights in {path} cannot be shown to a server: {error}; nothing was changed",
            remedy=f"make room in {path.parent}",
        ) from error
    return folder
