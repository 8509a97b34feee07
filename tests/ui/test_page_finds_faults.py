"""A run with planted faults: the page alone says what is wrong, since when, and which trajectories show it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from page_client import PageClient
from planted_run import DRIFTS, ENGINE_DIES, JUDGE_FAILS, NO_SIGNAL, SETTINGS, STEP_SECONDS, STEPS

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.ports import StalePolicy
from loopwright.runs.alarm_facts import unfinished
from loopwright.runs.run_folder import RunFolder
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    Group,
    GroupStatus,
    Reward,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
)


async def test_each_planted_fault_has_an_alarm(planted_run: RunFolder) -> None:
    run = f"/api/runs/{quote(planted_run.path.name, safe='')}"
    async with PageClient(planted_run.path) as page:
        told = {alarm["kind"]: alarm for alarm in (await page.json(f"{run}/health"))["alarms"]}
        assert told.keys() == {"failures", "engines", "no_signal", "lengths", "truncated"}
        failing, longer, cut = told["failures"], told["lengths"], told["truncated"]
        assert (failing["task_set"], failing["since"], failing["severe"]) == ("facts", JUDGE_FAILS, True)
        assert DRIFTS <= longer["since"] <= DRIFTS + 2
        assert cut["since"] == NO_SIGNAL + 1
        assert told["engines"]["since"] == ENGINE_DIES
        assert NO_SIGNAL <= told["no_signal"]["since"] <= NO_SIGNAL + 2
        for alarm in (told[kind] for kind in ("failures", "lengths", "truncated", "no_signal")):
            keys = [link["key"] for link in alarm["links"] if "key" in link]
            assert keys, alarm
            for key in keys:
                shown = await page.json(f"{run}/rollout", key=key)
                match alarm["kind"]:
                    case "failures":
                        assert shown["reward"]["cause"] == "judge"
                    case "truncated":
                        assert shown["stop"] == "budget"
                    case "no_signal":
                        assert shown["status"] == "filtered"
                    case "lengths":
                        assert shown["step"] == STEPS
            (step,) = (link for link in alarm["links"] if "step" in link)
            asked = {name: step[name] for name in ("step", "status", "cause", "task_set") if step[name] is not None}
            assert (await page.json(f"{run}/step", **asked))["total"] > 0


async def made(path: Path, groups: list[tuple[int | None, list[Reward]]], lines: list[dict[str, float]]) -> RunFolder:
    """A run of these metrics. Each of its groups was trained in that step, or failed (None), and its members have these
    rewards."""
    with RunFolder.open(path / "run", {**SETTINGS, "task_sets": [{"name": "sums"}]}) as folder:
        async with SqliteStorage(folder.rollouts) as storage:
            for draw, (step, rewards) in enumerate(groups):
                task = Task.ask(f"{draw}", f"What is {draw}+1?")
                row = await storage.draw("sums", draw, task, 0)
                members = [
                    Rollout(RolloutKey("sums", draw, member), task, Episode((), ()), reward, Timing(1.0, 1.0))
                    for member, reward in enumerate(rewards)
                ]
                for one in members:
                    await storage.put(row, one)
                status = GroupStatus.FAILED if step is None else GroupStatus.COMPLETED
                await storage.mark([("sums", draw)], status)
                if step is not None:
                    scored = tuple(one for one in members if isinstance(one.reward, Scored))
                    await storage.consume([Group("sums", draw, task, scored)], step)
        folder.metrics.write_text("".join(json.dumps({"time": 60.0 * line["step"], **line}) + "\n" for line in lines))
    return folder


async def alarm_of(folder: RunFolder, kind: str) -> dict[str, Any]:
    async with PageClient(folder.path) as page:
        told = (await page.json("/api/runs/run/alarms"))["alarms"]
    found: dict[str, Any] = next(alarm for alarm in told if alarm["kind"] == kind)
    return found


async def shown_by(folder: RunFolder, link: dict[str, Any]) -> int:
    """How many groups the page shows behind a link to a step."""
    asked = {name: link[name] for name in ("step", "status", "cause", "task_set") if link[name] is not None}
    async with PageClient(folder.path) as page:
        return int((await page.json("/api/runs/run/step", **asked))["total"])


async def test_groups_that_trained_with_equal_rewards_are_shown(tmp_path: Path) -> None:
    """None of them was filtered."""
    groups: list[tuple[int | None, list[Reward]]] = [(step, [Scored(1.0), Scored(1.0)]) for step in range(1, 6)]
    lines = [{"step": step, "groups/trained": 1.0, "groups/filtered": 0.0} for step in range(1, 6)]
    folder = await made(tmp_path, groups, lines)
    alarm = await alarm_of(folder, "no_signal")
    assert alarm["numbers"].startswith("5 of 5 groups in steps 1 to 5")
    *examples, link = alarm["links"]
    assert [one["key"] for one in examples] == [f"sums/{draw:06}/00/0" for draw in (4, 3, 2)]
    assert (link["step"], link["status"], await shown_by(folder, link)) == (5, None, 1)


BROKEN = Failed(FailureCause.JUDGE, "KeyError", "judge.py:3 'answer'")


async def test_groups_that_trained_without_a_failed_member_are_shown(tmp_path: Path) -> None:
    """No group failed as a whole."""
    numbers = {"groups/trained": 1.0, "groups/failed": 0.0, "groups/size": 3.0, "failures/judge": 1.0}
    rewards: list[Reward] = [Scored(1.0), Scored(0.0), Scored(0.5), BROKEN]
    groups: list[tuple[int | None, list[Reward]]] = [(step, rewards) for step in range(1, 6)]
    folder = await made(tmp_path, groups, [{"step": step, **numbers} for step in range(1, 6)])
    alarm = await alarm_of(folder, "failures")
    link = alarm["links"][-1]
    assert (link["step"], link["status"], link["cause"]) == (5, None, "judge")
    assert await shown_by(folder, link) == 1


async def test_failures_of_a_step_that_was_never_finished_are_told(tmp_path: Path) -> None:
    """The run died of its judge, so no metric tells of these groups. Those of the steps before are many and sound."""
    sound: list[Reward] = [Scored(1.0), Scored(0.0), Scored(0.5), Scored(1.0)]
    groups: list[tuple[int | None, list[Reward]]] = [(step, sound) for step in range(1, 6)]
    groups += [(None, [BROKEN, BROKEN, BROKEN, Scored(1.0)])] * 4
    numbers = {"groups/trained": 500.0, "groups/failed": 0.0, "groups/size": 4.0, "failures/judge": 0.0}
    folder = await made(tmp_path, groups, [{"step": step, **numbers} for step in range(1, 6)])
    alarm = await alarm_of(folder, "failures")
    assert alarm["severe"]
    assert alarm["numbers"].startswith("12 of 8016 attempts in steps 2 to 6 (0%); 12 of 16 in step 6, which is")
    *examples, link = alarm["links"]
    assert examples[0]["key"] == "sums/000008/00/0"
    assert (link["step"], link["status"], link["cause"]) == (6, "failed", "judge")
    assert await shown_by(folder, link) == 4
    with RunFolder.open(folder.path, {**SETTINGS, "task_sets": [{"name": "sums"}]}):
        async with SqliteStorage(folder.rollouts) as storage, PageClient(folder.path) as page:
            assert (await page.json("/api/runs/run/alarms"))["alarms"] == [], "it goes on, and may mend itself"
            folder.adopt({**SETTINGS, "trainer": {"steps": 5}})
    async with PageClient(folder.path) as page, SqliteStorage(folder.rollouts) as storage:
        assert (await page.json("/api/runs/run/alarms"))["alarms"] == [], "no step follows the last one"
        await storage.resume(["sums"], step=5, next_draws=None, policy=StalePolicy())
    assert unfinished(folder.rollouts) == {}, "they are of a lineage that is over"


async def test_the_time_of_a_step_is_what_passes_between_steps(planted_run: RunFolder) -> None:
    async with PageClient(planted_run.path) as page:
        assert (await page.json(f"/api/runs/{quote(planted_run.path.name, safe='')}"))["step_seconds"] == STEP_SECONDS


async def test_a_run_that_stands_still_in_its_first_step_says_so(tmp_path: Path) -> None:
    task, hour = Task.ask("a", "What is 1+1?"), 3600

    async def kinds() -> list[str]:
        async with PageClient(tmp_path / "young") as page:
            return [alarm["kind"] for alarm in (await page.json("/api/runs/young/health"))["alarms"]]

    with RunFolder.open(tmp_path / "young", SETTINGS) as folder:
        assert await kinds() == [], "it was opened a moment ago"
        os.utime(folder.lock, (time.time() - hour,) * 2)
        assert await kinds() == ["stall"]
        async with SqliteStorage(folder.rollouts) as storage:
            row = await storage.draw("sums", 0, task, 0)
            assert await kinds() == ["stall"], "what was begun has not ended"
            await storage.put(row, Rollout(RolloutKey("sums", 0, 0), task, None, Scored(1.0), Timing(time.time(), 1.0)))
            assert await kinds() == []
        folder.rollouts.unlink()
        folder.events.write_text('{"step": 1, "name": "evaluate", "start": 1, "end": 2}\n')
        assert await kinds() == [], "an evaluation has ended"
