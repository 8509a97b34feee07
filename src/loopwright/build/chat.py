"""Talking to the model of a run, and reading its tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loopwright.agents import EnginePolicy
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import RunError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.runtime import configure
from loopwright.models.tokenizer import load_tokenizer
from loopwright.ports import Renderer, Reply
from loopwright.render.choose import make_renderer
from loopwright.runs.kept_weights import newest_weights
from loopwright.runs.run_folder import RunFolder
from loopwright.types import Message, Sampling


class ChatModel:
    """One conversation with a model. Each reply is sampled with a new seed."""

    def __init__(self, engine: TorchEngine, model: LoadedModel) -> None:
        self._engine = engine
        self._renderer = make_renderer(model.tokenizer)
        self._max_context = model.max_context
        self._replies = 0

    async def reply(self, messages: Sequence[Message], *, temperature: float, max_new_tokens: int) -> Reply:
        self._replies += 1
        sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=self._replies)
        policy = EnginePolicy(self._engine, self._renderer, sampling, f"chat/{self._replies}", self._max_context)
        return await policy.reply(messages)


@asynccontextmanager
async def open_chat(folder: RunFolder, *, cache: Path) -> AsyncIterator[ChatModel]:
    """The run's model: the exported one, or that of its latest checkpoint. `cache` is where converted models are."""
    weights = newest_weights(folder)
    trained_context = _model_config(folder).get("max_context")
    with ComputeThread() as compute:
        await compute.run(configure, threads=None, deterministic=False)
        model = await compute.run(load_model, weights.path, cache=cache, trained_context=trained_context)
        async with TorchEngine(model, compute, max_batch=1, cache_tokens=model.max_context) as engine:
            yield ChatModel(engine, model)


def run_renderer(folder: RunFolder) -> Renderer:
    """The renderer of a run: its tokenizer, and how it writes conversations."""
    if not folder.tokenizer.exists():
        raise RunError(
            f"{folder.path} has no tokenizer yet", remedy="wait until the run has loaded its model, then try again"
        )
    return make_renderer(load_tokenizer(str(folder.tokenizer)), _model_config(folder).get("renderer", "auto"))


def _model_config(folder: RunFolder) -> dict[str, Any]:
    model: dict[str, Any] = (folder.stored_config() or {}).get("model", {})
    return model
