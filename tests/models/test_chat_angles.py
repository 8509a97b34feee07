"""Who talks to a run's model talks to the model that was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from zoo import ORIGINAL, Kind, build, longrope

from loopwright.agents import EnginePolicy
from loopwright.build import open_chat
from loopwright.engines.torch.engine import TorchEngine
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.render.choose import make_renderer
from loopwright.runs.run_folder import RunFolder
from loopwright.types import Sampling


@pytest.mark.parametrize("max_context", [ORIGINAL, None], ids=["short factors", "long factors"])
async def test_chat_has_the_angles_of_the_runs_context(max_context: int | None, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    build(Kind("phi3", longrope(1.0, 4.0)), folder.export)
    folder.config.write_text(yaml.safe_dump({"model": {"max_context": max_context}}))
    trained = load_model(str(folder.export), cache=tmp_path, max_context=max_context)
    messages = [{"role": "user", "content": "Hi"}]
    with ComputeThread() as compute:
        async with TorchEngine(trained, compute) as engine:
            renderer, sampling = make_renderer(trained.tokenizer), Sampling(temperature=0.0, max_new_tokens=8)
            wanted = await EnginePolicy(engine, renderer, sampling, "r", 1024).reply(messages)
    async with open_chat(folder, cache=tmp_path) as chat:
        assert (await chat.reply(messages, temperature=0.0, max_new_tokens=8)).text == wanted.text
