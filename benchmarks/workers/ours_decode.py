"""Loopwright's engine: all prompts submitted at once, sampling without a stop token. It gives logprobs as always."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port, Stopwatch


async def main(port: Port) -> None:
    from loopwright.models.openmp import wait_without_spinning

    wait_without_spinning(os.environ)

    from loopwright.engines.torch.engine import TorchEngine
    from loopwright.models.compute import ComputeThread
    from loopwright.models.load import load_model
    from loopwright.models.runtime import configure

    spec = port.spec
    with ComputeThread() as compute:
        await compute.run(configure, threads=spec["threads"], deterministic=False)
        loaded = await compute.run(load_model, spec["model"], cache=Path(spec["folder"]))
        prompts = [tuple(ids) for ids in spec["prompts"] for _ in range(spec["samples"])]
        async with TorchEngine(loaded, compute, max_batch=len(prompts)) as engine:
            port.ready("loopwright", "torch", "transformers")
            for round, watch in enumerate(port.rounds()):
                await _generate(engine, prompts, spec["new_tokens"], round)
                taken = watch.stop()
                first = Stopwatch()
                await _generate(engine, prompts, 1, round)
                port.answer(taken, first_token_seconds=first.stop()["seconds"])


async def _generate(engine: Any, prompts: list[tuple[int, ...]], new_tokens: int, round: int) -> None:
    from loopwright.types import GenerateRequest, Sampling

    requests = [
        GenerateRequest(f"{i:04d}", ids, Sampling(max_new_tokens=new_tokens, seed=round * len(prompts) + i))
        for i, ids in enumerate(prompts)
    ]
    generations = await asyncio.gather(*(engine.generate(request) for request in requests))
    if any(len(generation.ids) != new_tokens for generation in generations):
        raise RuntimeError("an answer ended early: both sides must sample the same number of tokens")


if __name__ == "__main__":
    asyncio.run(main(Port()))
