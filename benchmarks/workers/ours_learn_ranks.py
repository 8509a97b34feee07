"""Loopwright's learner as its config opens it, with one rank or several: one train step for each length of a row.

Memory is that of the processes that compute, seen from outside, where freed memory cannot be returned to the system. So
what is resident is measured once, after a first step on a short row, which leaves little freed memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workers.ours_learn import until_out_of_memory
from benchmarks.workers.port import Port, Stopwatch, limit_memory, peak_memory, start_peak_anew

COMMAND = b"learner-rank"
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Opened:
    """A learner, the processes that compute for it, and the bytes of each one's share of the gradients."""

    learner: Any
    processes: Sequence[int]
    gradient_bytes: int
    vocabulary: int


async def main(port: Port) -> None:
    from loopwright.models.openmp import wait_without_spinning

    wait_without_spinning(os.environ)

    from loopwright.testing.made_groups import row_of

    spec = port.spec
    limit_memory(spec["most_bytes"])
    async with opened(spec) as learner:
        groups = {n: row_of(n, vocabulary=learner.vocabulary) for n in (spec["first"], *spec["lengths"])}
        # The first step makes the moments, which stay.
        await learner.learner.step([groups[spec["first"]]])
        # The next step forgets the gradients before it computes anything.
        resident = [start_peak_anew(process) - learner.gradient_bytes for process in learner.processes]
        port.ready("loopwright", "torch", "transformers")
        for watch in port.rounds():
            steps = []
            with until_out_of_memory():
                for tokens in spec["lengths"]:
                    steps.append(await measured(learner, groups[tokens], resident, tokens))
            port.answer(watch.stop(), steps=steps, resident=resident)


async def measured(learner: Opened, group: Any, resident: Sequence[int], tokens: int) -> dict[str, Any]:
    """One step on the row: its time, and what each process took besides what was resident."""
    for process in learner.processes:
        start_peak_anew(process)
    watch = Stopwatch()
    report = await learner.learner.step([group])
    shares = [share for name, share in report.metrics.items() if name.endswith("/communication_share")]
    return {
        "tokens": tokens,
        **watch.stop(),
        "bytes": [peak_memory(process) - size for process, size in zip(learner.processes, resident, strict=True)],
        "communication_share": max(shares, default=0.0),
    }


@asynccontextmanager
async def opened(spec: dict[str, Any]) -> AsyncIterator[Opened]:
    from loopwright.build.parts import make_model, make_outline
    from loopwright.build.ranks import open_ranked_learner
    from loopwright.build.recipe import load_ingredients, make_driver_recipe, make_recipe
    from loopwright.config import load
    from loopwright.learn.learner import TorchLearner
    from loopwright.models.compute import ComputeThread
    from loopwright.runs.run_folder import RunFolder
    from loopwright.track.jsonl import JsonlTracker

    loaded, cache = load(Path(spec["config"]), files=True), Path(spec["cache"])
    ingredients, ranks = load_ingredients(loaded), loaded.config.learner.ranks
    with ComputeThread() as compute:
        outline = await compute.run(make_outline, loaded, cache)
        size = FLOAT32 * outline.parameters // ranks
        if ranks == 1:
            model = await compute.run(make_model, loaded, cache)
            recipe = await compute.run(make_recipe, loaded, ingredients, model, cache)
            learner = await compute.run(TorchLearner, model, recipe, compute)
            yield Opened(learner, [os.getpid()], size, outline.vocabulary)
        else:
            recipe = make_driver_recipe(loaded, ingredients, outline)
            folder = RunFolder(Path(loaded.config.trainer.run_dir))
            opening = open_ranked_learner(
                loaded,
                outline,
                recipe,
                compute,
                cache=cache,
                folder=folder,
                env=os.environ,
                cluster=None,
                journal=JsonlTracker(folder.path),
            )
            async with opening as ranked:
                yield Opened(ranked, _ranks(), size, outline.vocabulary)


def _ranks() -> list[int]:
    """The ranks that this process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and COMMAND in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return sorted(found)


if __name__ == "__main__":
    asyncio.run(main(Port()))
