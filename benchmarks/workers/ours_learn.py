"""Loopwright's learner alone: one train step for each length of a row, on made-up groups."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port, Stopwatch, limit_memory, peak_memory, resting_memory


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
    from loopwright.testing.made_groups import row_of

    spec = port.spec
    limit_memory(spec["most_bytes"])
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
        adapted = await compute.run(_adapted, loaded, spec["adapter_rank"]) if spec["adapter_rank"] else None
        learner = await compute.run(TorchLearner, loaded, recipe, compute, adapted)
        trained = (adapted.parameters if adapted else dict(loaded.model.named_parameters())).values()
        groups = {n: row_of(n, vocabulary=loaded.vocabulary) for n in (spec["first"], *spec["lengths"])}
        # The first step makes the moments, which stay.
        await learner.step([groups[spec["first"]]])
        port.ready("loopwright", "torch", "transformers")
        for watch in port.rounds():
            resident, steps = _rested(trained), []
            with until_out_of_memory():
                for tokens in spec["lengths"]:
                    steps.append(await _step(learner, groups[tokens], tokens, trained))
            port.answer(watch.stop(), steps=steps, resident=resident)


@contextmanager
def until_out_of_memory() -> Iterator[None]:
    """The block ends when a step runs out of memory. Longer rows are not tried."""
    from loopwright.errors import LearnerError

    try:
        yield
    except LearnerError as error:
        if not error.message.startswith("out of memory"):
            raise


def _adapted(loaded: Any, rank: int) -> Any:
    from loopwright.learn.lora import AdaptedModel
    from loopwright.models.adapters import AdapterShape

    return AdaptedModel(loaded, AdapterShape(rank, 2 * rank), seed=0)


async def _step(learner: Any, group: Any, tokens: int, trained: Iterable[Any]) -> dict[str, float]:
    before, watch = _rested(trained), Stopwatch()
    await learner.step([group])
    return {"tokens": tokens, "bytes": peak_memory() - before, **watch.stop()}


def _rested(trained: Iterable[Any]) -> int:
    """What is resident between two steps. The gradients of the last step do not count: the next one forgets them before
    it computes anything."""
    for parameter in trained:
        parameter.grad = None
    return resting_memory()


if __name__ == "__main__":
    asyncio.run(main(Port()))
