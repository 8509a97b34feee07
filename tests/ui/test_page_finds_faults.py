"""A run with planted faults: the page alone says what is wrong, since when, and which trajectories show it."""

from __future__ import annotations

from urllib.parse import quote

from page_client import PageClient
from planted_run import DRIFTS, ENGINE_DIES, JUDGE_FAILS, NO_SIGNAL, STEPS

from loopwright.runs.run_folder import RunFolder


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
