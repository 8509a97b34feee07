"""Loopwright's GRPO step: the run that `loopwright train` would open, driven one step per round.

Nothing is left out that a user's run does in a step: rollouts are committed to SQLite, groups marked, metrics written.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port


async def main(port: Port) -> None:
    from loopwright.models.openmp import wait_without_spinning

    wait_without_spinning(os.environ)

    from loopwright.build import open_run
    from loopwright.config import load
    from loopwright.trainers.colocate import ColocateTrainer

    loaded = load(Path(port.spec["config"]), files=True)
    async with open_run(loaded, cache=Path(port.spec["cache"]), stop=asyncio.Event()) as run:
        if not isinstance(run.trainer, ColocateTrainer):
            raise TypeError("only a colocated run can be driven step by step")
        port.ready("loopwright", "torch", "transformers")
        for watch in port.rounds():
            await run.trainer.advance()
            taken = watch.stop()
            port.answer(taken, **_facts(run.folder, run.learner.version))


def _facts(folder: Any, step: int) -> dict[str, Any]:
    """What the step did, from what it stored."""
    from loopwright.runs.stored_run import StoredRun
    from loopwright.track.jsonl import read_jsonl

    groups: dict[int, list[Any]] = {}
    for rollout in StoredRun(folder.rollouts).rollouts(step):
        groups.setdefault(rollout.key.draw, []).append(rollout)
    *_, metrics = read_jsonl(folder.metrics)
    return {
        "rollout_seconds": metrics["time/rollout"],
        "train_seconds": metrics["time/train"],
        "trained_tokens": metrics["learner/trained_tokens"],
        "groups": [_counts(rollouts) for rollouts in groups.values()],
    }


def _counts(rollouts: list[Any]) -> dict[str, Any]:
    chains = [rollout.episode.chains[0] for rollout in rollouts]
    return {
        "prompt_tokens": int(chains[0].mask.argmax()),
        "sampled": [int(chain.sampled) for chain in chains],
        "rewards": [rollout.score for rollout in rollouts],
    }


if __name__ == "__main__":
    asyncio.run(main(Port()))
