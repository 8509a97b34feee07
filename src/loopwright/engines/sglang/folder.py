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
    """A folder with a link to the file, beside it. Raises WeightsError if the file is gone or has another size: SGLang
    dies of a damaged one."""
    folder = await asyncio.to_thread(_linked, file)
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _linked(file: WeightFile) -> Path:
    path = Path(file.path)
    try:
        size = path.stat().st_size
        if size != file.bytes:
            raise WeightsError(
                f"{path} has {size:,} bytes instead of {file.bytes:,}; nothing was changed",
                remedy="publish the weights again; nothing but the run may touch this folder while it is running",
            )
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent))
        (folder / "model.safetensors").symlink_to(path.absolute())
    except OSError as error:
        raise WeightsError(
            f"the weights in {path} cannot be shown to a server: {error}; nothing was changed",
            remedy="publish the weights again; nothing but the run may touch this folder while it is running",
        ) from error
    return folder
