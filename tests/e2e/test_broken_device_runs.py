"""The device of a run breaks under its own engine: the run ends with that, and saves nothing of what was on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright.build import open_run
from loopwright.config import load
from loopwright.engines.torch.forward import Forward
from loopwright.errors import DeviceError
from loopwright.learn.learner import TorchLearner

WriteConfig = Callable[..., Path]


async def test_a_broken_device_is_told_and_nothing_on_it_is_saved(
    write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config(eval=None, trainer__steps=4, trainer__export=False, trainer__checkpoint_every=2)
    saved = list[int]()
    save = TorchLearner.save

    async def seen(learner: TorchLearner, folder: Path) -> None:
        saved.append(learner.version)
        await save(learner, folder)

    monkeypatch.setattr(TorchLearner, "save", seen)
    async with asyncio.timeout(120):
        with monkeypatch.context() as device, pytest.raises(DeviceError, match="illegal memory access") as caught:
            await _break_after(3, file, device)
        assert "start the command again" in caught.value.remedy
        assert saved == [2], "step 3 is on the broken device"
        async with open_run(load(file), cache=tmp_path, stop=asyncio.Event()) as run:
            assert await run.train()
    assert saved == [2, 4]


async def _break_after(last: int, file: Path, device: pytest.MonkeyPatch) -> None:
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event()) as run:
        async for step in run.steps():
            if step.number == last:
                device.setattr(Forward, "advance", _breaks)


def _breaks(*_: Any) -> None:
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
