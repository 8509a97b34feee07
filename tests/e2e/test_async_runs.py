"""Whole colocated runs that make groups ahead, keep nothing on disk, or do not move any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from loopwright.build import open_run
from loopwright.config import load
from loopwright.errors import StalledError
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import GroupStatus

WriteConfig = Callable[..., Path]

SLOW_AT_TIMES = """
import asyncio

class Agent:
    resumable = False

    async def run(self, task, policy):
        if task.id in ("t1", "t5"):
            await asyncio.sleep(0.3)
        reply = await policy.reply(task.messages)
        return [*task.messages, reply.message]
"""
HANGS = """
import asyncio

class Agent:
    async def run(self, task, policy):
        reply = await policy.reply(task.messages)
        if task.id == "t3":
            await asyncio.Event().wait()
        return [*task.messages, reply.message]
"""


async def run(file: Path, stop: asyncio.Event | None = None, **options: Any) -> RunFolder:
    async with open_run(load(file), cache=file.parent, stop=stop or asyncio.Event(), **options) as opened:
        await opened.train()
        return opened.folder


def metrics(folder: RunFolder, name: str) -> dict[int, float]:
    return {record["step"]: record[name] for record in read_jsonl(folder.metrics) if name in record}


def counts(folder: RunFolder) -> dict[GroupStatus, int]:
    return {status: n for status, n in StoredRun(folder.rollouts).counts()["train"].items() if n}


def python_agent(tmp_path: Path, source: str, name: str = "agent.py") -> dict[str, str]:
    (tmp_path / name).write_text(source)
    return {"kind": "python", "path": f"{name}:Agent", "judger": "vowels"}


@pytest.mark.parametrize("in_flight", ["drain", "abort"])
async def test_a_colocated_run_may_start_more_groups_than_it_needs(
    write_config: WriteConfig, tmp_path: Path, in_flight: str
) -> None:
    agent = python_agent(tmp_path, SLOW_AT_TIMES)
    produce = {"kind": "async", "over_sample": 0.7, "max_staleness": 2, "in_flight": in_flight}
    changes = {"rollout__max_new_tokens": 60, "rollout__engine": {"max_batch": 4}}
    folder = await run(write_config(produce=produce, agent=agent, trainer__steps=4, **changes))
    assert counts(folder)[GroupStatus.CONSUMED] == 12
    assert max(metrics(folder, "staleness/max").values()) <= 2
    assert set(metrics(folder, "staleness/masked").values()) == {0.0}
    for step in (1, 2, 3, 4):
        versions = {
            int(v)
            for r in StoredRun(folder.rollouts).rollouts(step)
            if r.episode is not None
            for v in r.episode.chains[0].versions
            if v >= 0
        }
        assert all(step - 1 - version <= 2 for version in versions)
        assert all(r.key.attempt == 0 for r in StoredRun(folder.rollouts).rollouts(step)), "nobody saw an abort"


async def test_a_task_set_may_be_left_out_of_oversampling(write_config: WriteConfig) -> None:
    file = write_config(produce={"kind": "async", "over_sample": 1.0, "in_flight": "drain"}, eval=None)
    config = yaml.safe_load(file.read_text())
    one = {"data": config.pop("data"), "agent": config.pop("agent")}
    config["task_sets"] = [{"name": "far", **one}, {"name": "near", "produce": "sync", **one}]
    file.write_text(yaml.safe_dump(config))
    folder = await run(file)
    drawn = {name: sum(found.values()) for name, found in StoredRun(folder.rollouts).counts().items()}
    trained = [StoredRun(folder.rollouts).rollouts(step) for step in (1, 2, 3)]
    assert drawn["near"] == sum(rollout.key.task_set == "near" for step in trained for rollout in step) // 4
    assert drawn["far"] > sum(rollout.key.task_set == "far" for step in trained for rollout in step) // 4


async def test_a_run_in_memory_leaves_checkpoints_metrics_and_an_export_and_goes_on(
    write_config: WriteConfig,
) -> None:
    folder = await run(write_config(buffer={"kind": "memory"}, trainer__steps=2))
    assert not folder.rollouts.exists()
    assert set(metrics(folder, "reward/mean")) == {1, 2}
    assert folder.report.is_file()

    folder = await run(write_config(buffer={"kind": "memory"}, trainer__steps=3))
    assert set(metrics(folder, "reward/mean")) == {1, 2, 3}
    assert set(metrics(folder, "eval/eval/greedy/reward")) == {0, 2, 3}
    assert folder.export.is_dir()


async def test_a_run_that_stalls_saves_lists_the_oldest_rollouts_and_ends(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    file = write_config(
        agent=python_agent(tmp_path, HANGS),
        data__shuffle=False,
        trainer__stall_seconds=0.3,
        trainer__checkpoint_every=100,
        trainer__steps=200,
    )
    with pytest.raises(StalledError) as caught:
        await run(file)
    assert "the trainer waits for the rollouts of step 2" in caught.value.message
    assert "train/000003" in caught.value.message, "the oldest rollouts are listed"
    assert "trainer.stall_seconds" in caught.value.remedy
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000001"]
    assert counts(folder)[GroupStatus.CONSUMED] == 3
    assert GroupStatus.PENDING not in counts(folder)

    mended = write_config(
        agent=python_agent(tmp_path, SLOW_AT_TIMES, "mended.py"), data__shuffle=False, trainer__steps=3
    )
    assert counts(await run(mended, allow_config_change=True)) == {GroupStatus.CONSUMED: 9}
