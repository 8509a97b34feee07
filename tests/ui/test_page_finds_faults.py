"""A run with planted faults: the page alone says what is wrong, since when, and which trajectories show it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import quote

from page_client import PageClient
from planted_run import DRIFTS, ENGINE_DIES, JUDGE_FAILS, NO_SIGNAL, SETTINGS, STEPS

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.runs.run_folder import RunFolder
from loopwright.types import Rollout, RolloutKey, Scored, Task, Timing


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
