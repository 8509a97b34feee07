"""The adapters of a vLLM server. Each version has a name and a folder of its own, because a server keeps what it has
under a name. The version that is served stays until the next one is there, so two are there at most: no request lives
across an update, however stale its rollout may get."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from loopwright.core.adapter_names import A
from loopwright.errors import UnanswerableError, WeightsError
from loopwright.types import WeightFile

SLOTS = 2
Tell = Callable[[str, Any], Awaitable[None]]
"""Gives the server a command: its path and its body."""


class ServedAdapters:
    """`name` is that of the adapter that requests ask for; None without adapters."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.name: str | None = None
        self._folder: Path | None = None
        self._loads = 0

    async def load(self, name: str, file: WeightFile) -> str | None:
        """Have the server load an adapter. Gives the reason if it refused."""
        self._loads += 1
        if self.name is not None and name == self.name.partition("#")[0]:
            # It was loaded before, and perhaps not proven. Under the same name the server would keep what it has.
            name = f"{name}#{self._loads}"
        try:
            folder = await asyncio.to_thread(_peft_folder, name, file)
        except WeightsError as error:
            return error.message
        try:
            await self._tell("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except UnanswerableError as error:
            await _removed(folder)
            return error.message
        await self._unload()
        self.name, self._folder = name, folder
        return None

    async def forget(self) -> None:
        """Whole weights were loaded: requests ask for these from now on."""
        await self._unload()

    async def _unload(self) -> None:
        if self.name is not None:
            await self._tell("/v1/unload_lora_adapter", {"lora_name": self.name})
        if self._folder is not None:
            await _removed(self._folder)
        self.name = self._folder = None


async def _removed(folder: Path) -> None:
    await asyncio.to_thread(shutil.rmtree, folder.parent, ignore_errors=True)


def _peft_folder(name: str, file: WeightFile) -> Path:
    """A new folder called `name` with the adapter as peft writes it. The scale is in B already, so alpha is the rank.
    Raises WeightsError if the file is gone or damaged."""
    # It imports torch, which a process that only samples does not need.
    from loopwright.models.weight_files import read_weights

    read_weights(file)
    path = Path(file.path).absolute()
    targets = [name.removesuffix(A) for name in file.tensors if name.endswith(A)]
    rank = file.tensors[targets[0] + A].shape[0]
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({target.rpartition(".")[2] for target in targets}),
        "bias": "none",
    }
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent)) / name
        folder.mkdir()
        # A copy: the file is overwritten by a later version.
        shutil.copyfile(path, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(config))
    except OSError as error:
        raise WeightsError(
            f"the adapter in {path} cannot be shown to a server: {error}; nothing was changed",
            remedy=f"make room in {path.parent}",
        ) from error
    return folder
