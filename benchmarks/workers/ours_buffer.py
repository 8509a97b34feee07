"""Loopwright's storage: groups are drawn beforehand, a put has returned when its rollout is committed, and a get reads,
checks and decodes a group's tokens. A batch of 1 is a group of one, put and awaited alone; one of 64 a group of 64."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port, Stopwatch


async def main(port: Port) -> None:
    from loopwright.buffer.storage.sqlite import SqliteStorage

    spec = port.spec
    async with SqliteStorage(Path(spec["folder"]) / "ours.sqlite") as storage:
        port.ready("loopwright", "numpy")
        draw = 0
        for watch in port.rounds():
            puts, gets = {}, {}
            for batch in spec["batches"]:
                groups = spec["samples"] // batch
                puts[batch], gets[batch] = await _pass(storage, draw, groups, batch, spec["tokens"])
                draw += groups
            port.answer(watch.stop(), samples=spec["samples"], put_seconds=puts, get_seconds=gets)


async def _pass(storage: Any, first: int, groups: int, batch: int, tokens: int) -> tuple[float, float]:
    """Seconds of putting and of getting."""
    from loopwright.types import Task

    task = Task.ask("task", "What is 3+4?", truth=7)
    rows = [await storage.draw("train", first + i, task, 0) for i in range(groups)]
    rollouts = [[_rollout(row.draw, member, task, tokens) for member in range(batch)] for row in rows]
    watch = Stopwatch()
    for row, members in zip(rows, rollouts, strict=True):
        await asyncio.gather(*(storage.put(row, rollout) for rollout in members))
    put = watch.stop()["seconds"]
    watch = Stopwatch()
    for row in rows:
        if len(await storage.rollouts_of("train", row.draw)) != batch:
            raise RuntimeError("a sample is missing")
    return put, watch.stop()["seconds"]


def _rollout(draw: int, member: int, task: Any, tokens: int) -> Any:
    import numpy as np

    from loopwright.types import Episode, Rollout, RolloutKey, Scored, Timing, TokenChain

    random = np.random.default_rng(draw * 64 + member)
    mask = np.arange(tokens) >= tokens // 8
    chain = TokenChain(
        random.integers(0, 49152, tokens, dtype=np.int32),
        mask,
        np.where(mask, -random.random(tokens, dtype=np.float32), np.float32(0.0)),
        np.where(mask, np.int32(3), np.int32(-1)),
    )
    episode = Episode((*task.messages, {"role": "assistant", "content": "7"}), (chain,))
    return Rollout(RolloutKey("train", draw, member), task, episode, Scored(1.0), Timing(0.0))


if __name__ == "__main__":
    asyncio.run(main(Port()))
