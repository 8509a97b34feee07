"""What a run does is in its folder while it runs, and the folder of one that ended says that it does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loopwright.build.status
from loopwright.build import open_run
from loopwright.config import load
from loopwright.errors import BudgetError
from loopwright.runs.first_screen import first_screen
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.run_status import RunState, read_status
from loopwright.runs.stored_run import StoredRun

WriteConfig = Callable[..., Path]

SLOW = """
import asyncio

async def judge(task, episode):
    await asyncio.sleep(0.3)
    return len(episode.answer) / 8
"""


AGENT = """
import httpx

async def asks(task, base_url, api_key):
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {api_key}"}, timeout=60) as http:
        body = {"model": "m", "messages": list(task.messages)}
        (await http.post(f"{base_url}/chat/completions", json=body)).raise_for_status()
"""


@pytest.fixture
def told_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopwright.build.status, "WRITTEN_EVERY_SECONDS", 0.01)


@pytest.mark.usefixtures("told_often")
async def test_a_run_says_what_it_does_while_it_does_it(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(eval=None, trainer__steps=2, trainer__export=False)
    (tmp_path / "judger.py").write_text(SLOW)
    folder, seen = RunFolder(tmp_path / "run"), list[dict[str, Any]]()

    async def look() -> None:
        while True:
            now = read_status(folder)
            if now.present:
                seen.append(now.present)
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    async with open_run(load(file), cache=tmp_path, stop=asyncio.Event()) as run:
        await run.train()
        assert read_status(folder).state is RunState.RUNNING
    looking.cancel()
    judged = next(one for one in seen if one["in_flight"]["judged"])
    assert [phase["what"] for phase in judged["now"]] == ["rollout"]
    assert judged["waits"][0]["for"] == f"the rollouts of step {judged['step'] + 1}"
    oldest = judged["in_flight"]["oldest"][0]
    assert (oldest["stage"], oldest["split"]) == ("judge", "train")
    agents = [one for told in seen for one in told["in_flight"]["oldest"] if one["stage"] == "agent"]
    assert all(one["turn"] <= 1 and one["tokens"] <= 8 for one in agents)
    (engine,) = seen[-1]["engines"]
    assert (engine["serves"], engine["version"], engine["proof"]["version"]) == (True, 2, 2)
    assert seen[-1]["in_flight"]["finished"] == 24
    assert "What is" not in json.dumps(seen), "no text of a task or a model"

    ended = read_status(folder)
    assert (ended.state, ended.present, ended.told["step"]) == (RunState.NOT_RUNNING, {}, 2)
    assert ended.ended is not None
    assert (ended.ended.how, ended.ended.error) == ("finished", None)
    screen = first_screen(folder)
    assert (screen.step, screen.steps, screen.is_finished) == (2, 2, True)
    assert screen.conservation == {"train": {"consumed": 6}}
    assert screen.seconds_per_step is not None
    assert 0.3 <= screen.seconds_per_step < 30


async def test_a_run_that_dies_of_its_judge_says_so(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(eval=None, trainer__export=False, produce={"failure_budget": 2})
    (tmp_path / "judger.py").write_text("async def judge(task, episode):\n    return {}[task.truth]\n")
    with pytest.raises(BudgetError) as caught:
        async with open_run(load(file), cache=tmp_path, stop=asyncio.Event()) as run:
            await run.train()
    now = read_status(RunFolder(tmp_path / "run"))
    assert now.ended is not None
    assert (now.ended.how, now.ended.error, now.told["step"]) == ("error", caught.value.message, 0)

    run = await open_run(load(file), cache=tmp_path, stop=asyncio.Event())
    with pytest.raises(BudgetError) as caught:
        await run.train()
    await run.close()
    now = read_status(RunFolder(tmp_path / "run"))
    assert now.ended is not None
    assert (now.ended.how, now.ended.error) == ("error", caught.value.message), "the caller did not hand it on"


@pytest.mark.usefixtures("told_often")
async def test_a_run_counts_the_sessions_of_its_agents(write_config: WriteConfig, tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(AGENT)
    agent = {"kind": "callable", "path": "agents.py:asks", "judger": "vowels"}
    file = write_config(agent=agent, eval=None, trainer__steps=1, trainer__export=False)
    folder, seen = RunFolder(tmp_path / "run"), list[dict[str, Any]]()

    async def look() -> None:
        while True:
            seen.append(read_status(folder).present.get("sessions") or {})
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    async with open_run(load(file), cache=tmp_path, stop=asyncio.Event()) as run:
        await run.train()
    looking.cancel()
    assert any(one.get("open") for one in seen)
    told = read_status(folder).told
    expected = {"open": 0, "waiting": 0, "completed": 12, "heard": None, "restarts": 0, "lost": None}
    assert told["sessions"] == expected
    assert (told["ranks"], told["crews"]) == ([], [])


async def test_each_rollout_says_who_made_it_and_when_it_was_judged(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(eval=None, trainer__steps=1, trainer__export=False, track__tokens=False)
    async with open_run(load(file), cache=tmp_path, stop=asyncio.Event()) as run:
        await run.train()
    for rollout in StoredRun(tmp_path / "run" / "rollouts.sqlite").rollouts(1):
        assert (rollout.worker, rollout.engines) == (None, ("0",))
        assert rollout.timing.held_seconds is not None
        assert rollout.timing.judged_at is not None
        assert rollout.timing.judged_at >= rollout.timing.started
