"""Loopwright's learner alone: one train step for each length of a row, on made-up groups."""

from __future__ import annotations

import asyncio
import ctypes
import os
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port, Stopwatch, peak_memory


async def main(port: Port) -> None:
    from loopwright.models.openmp import wait_without_spinning

    wait_without_spinning(os.environ)

    from loopwright.core.advantage import ADVANTAGES
    from loopwright.learn.learner import TorchLearner
    from loopwright.learn.losses import ppo_clip
    from loopwright.learn.recipe import Recipe
    from loopwright.models.compute import ComputeThread
    from loopwright.models.load import load_model
    from loopwright.models.runtime import configure
    from loopwright.testing.device_check import row_of

    spec = port.spec
    recipe = Recipe(
        advantage=ADVANTAGES["grpo"],
        loss=partial(ppo_clip, clip_low=0.2, clip_high=0.2),
        temperature=1.0,
        steps=100,
        constant_length=1,
        micro_batch_tokens=max(spec["lengths"]),
        checkpoint_activations=spec["checkpointed"],
    )
    with ComputeThread() as compute:
        await compute.run(configure, threads=spec["threads"], deterministic=False)
        loaded = await compute.run(load_model, spec["model"], cache=Path(spec["folder"]))
        trained = await compute.run(_adapted, loaded, spec["adapter_rank"]) if spec["adapter_rank"] else None
        learner = await compute.run(TorchLearner, loaded, recipe, compute, trained)
        # The first step makes gradients and moments, which stay.
        await learner.step([row_of(256, loaded)])
        port.ready("loopwright", "torch", "transformers")
        for watch in port.rounds():
            steps = [await _step(learner, loaded, tokens) for tokens in spec["lengths"]]
            port.answer(watch.stop(), steps=steps, resident=_rested())


def _adapted(loaded: Any, rank: int) -> Any:
    from loopwright.learn.lora import AdaptedModel
    from loopwright.models.adapters import AdapterShape

    return AdaptedModel(loaded, AdapterShape(rank, 2 * rank), seed=0)


async def _step(learner: Any, loaded: Any, tokens: int) -> dict[str, float]:
    from loopwright.testing.device_check import row_of

    group, before, watch = row_of(tokens, loaded), _rested(), Stopwatch()
    await learner.step([group])
    return {"tokens": tokens, "bytes": peak_memory() - before, **watch.stop()}


def _rested() -> int:
    """The bytes that are resident when freed memory has been returned to the system. The peak starts anew from here."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


if __name__ == "__main__":
    asyncio.run(main(Port()))
