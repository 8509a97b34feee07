"""Whole runs, audited: what training really leaves behind is conserved, single, young enough, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.build import open_run
from loopwright.config import load
from loopwright.runs.auditing.audit import audit
from loopwright.runs.stored_run import StoredRun
from loopwright.trainers.colocate import ColocateTrainer
from loopwright.types import GroupStatus

WriteConfig = Callable[..., Path]


async def train(config: Path, *overrides: str, stop_after: int | None = None) -> Path:
    """Train; with `stop_after`, until so many steps were trained."""
    loaded = load(config, overrides, {}, files=True)
    stop = asyncio.Event()
    async with open_run(loaded, cache=config.parent / "models", stop=stop) as run:
        if stop_after is None:
            await run.train()
        else:
            assert isinstance(run.trainer, ColocateTrainer)
            while run.learner.version < stop_after:
                await run.trainer.advance()
    return run.folder.path


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_run_that_is_opened_again_is_clean(write_config: WriteConfig, deterministic: bool) -> None:
    config = write_config(trainer__deterministic=deterministic, trainer__steps=4, eval=None, trainer__export=False)
    folder = await train(config, stop_after=3)  # step 3 is lost: the last checkpoint is that of step 2
    assert audit(folder / "rollouts.sqlite").is_clean
    await train(config)
    audited = audit(folder / "rollouts.sqlite")
    assert (audited.findings, audited.lineages) == ((), 2)
    table = audited.task_sets["train"]
    assert table.sampled == table.total
    assert table.standing[GroupStatus.CONSUMED].groups == 4 * 3
    assert table.standing[GroupStatus.DISCARDED].groups == (3 if deterministic else 0)


async def test_trained_tokens_leave_the_database_and_are_still_shown(write_config: WriteConfig) -> None:
    kept = await train(write_config(buffer__archive=False, trainer__deterministic=True, eval=None))
    assert not (kept / "archive").exists()
    moved = await train(write_config(trainer__deterministic=True, trainer__run_dir=str(kept.parent / "moved")))
    assert sorted(file.name for file in (moved / "archive").iterdir()) == [
        f"step-{step:06d}.parquet" for step in (1, 2, 3)
    ]
    assert [tokens(moved, step) for step in (1, 2, 3)] == [tokens(kept, step) for step in (1, 2, 3)]
    assert audit(moved / "rollouts.sqlite").is_clean


def tokens(folder: Path, step: int) -> list[list[int]]:
    """The ids of everything that a step was trained on."""
    rollouts = StoredRun(folder / "rollouts.sqlite").rollouts(step)
    return [chain.ids.tolist() for one in rollouts if one.episode for chain in one.episode.chains]
