"""Trials on an agent server: each runs once, ends as it should, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from server_house import EXIT, KEY, MODEL_KEY, TASK, house, left

from loopwright import AgentServer, Scored
from loopwright.agent_server.store import TrialStore
from loopwright.agents.runners import harbor
from loopwright.agents.trials.wire import TrialState, TrialStatus
from loopwright.errors import (
    AgentServerError,
    ConfigError,
    ProgramError,
    RefusedError,
    RunError,
    SetupError,
    TrialLostError,
)
from loopwright.types import Failed

RAN = "echo 1 >> {config}/ran-$1; "


async def test_a_trial_is_run_and_graded(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        await here.submit("trial-01", "echo $OPENAI_BASE_URL; cat; exit 10", runner={"stdin": "instruction"})
        status = await here.client.result("trial-01", seconds=60)
        assert (status.state, status.stage, status.reward) == (TrialState.DONE, TrialState.GRADE, Scored(0.0))
        assert status.output is not None
        assert "http://127.0.0.1:1/v1" in status.output.text
        assert "Say hello" in status.output.text
        assert set(status.seconds) == {"queued", "set-up", "run", "grade"}
    assert left(tmp_path) == []


async def test_failures_come_back_as_what_they_are(tmp_path: Path) -> None:
    async with house(tmp_path, slots=4) as here:
        reward = {"kind": "file", "path": "reward"}
        await here.submit("exits-07", "echo oh; exit 7", reward=reward)
        await here.submit("rewardless", "true", reward=reward)
        await here.submit("graded-1", "echo 0.5 > reward; exit 7", reward=reward, grades_failures=True)
        await here.submit("no-folder", "true", runner={"folder": "nowhere"})
        failed, rewardless, graded, broken = [
            await here.client.result(id, seconds=60) for id in ("exits-07", "rewardless", "graded-1", "no-folder")
        ]
        assert isinstance(failed.error, ProgramError)
        assert "exit code 7" in failed.error.message
        assert failed.reward is None
        assert isinstance(rewardless.reward, Failed)
        assert isinstance(graded.error, ProgramError)
        assert graded.reward == Scored(0.5)
        assert isinstance(broken.error, SetupError)


async def test_the_same_trial_is_run_once_and_another_under_its_id_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        script = RAN.replace("$1", "trial-01")
        key = await here.submit("trial-01", script)
        assert await here.submit("trial-01", script) == key
        await here.client.result("trial-01", seconds=60)
        assert await here.submit("trial-01", script) == key
        with pytest.raises(RefusedError, match="another trial"):
            await here.submit("trial-01", "true")
        assert here.ran("trial-01") == 1


async def test_results_survive_a_restart_and_what_was_not_finished_is_lost(tmp_path: Path) -> None:
    async with house(tmp_path, slots=1) as here:
        await here.submit("trial-01", "true")
        await here.client.result("trial-01", seconds=60)
        await here.submit("trial-02", RAN.replace("$1", "trial-02") + "sleep 1000")
        await here.submit("trial-03", RAN.replace("$1", "trial-03"))
        # Its stage begins before its program does.
        async with asyncio.timeout(60):
            while not here.ran("trial-02"):
                await asyncio.sleep(0.01)
        assert (await here.client.status("trial-02")).state is TrialState.RUN
    assert left(tmp_path) == []
    async with house(tmp_path) as here:
        assert (await here.client.status("trial-01")).reward == Scored(1.0)
        for id in ("trial-02", "trial-03"):
            status = await here.client.status(id)
            assert status.state is TrialState.LOST
            assert isinstance(status.error, AgentServerError)
        await here.submit("trial-02", RAN.replace("$1", "trial-02") + "sleep 1000")
        assert (await here.client.status("trial-02")).state is TrialState.LOST
        assert (here.ran("trial-02"), here.ran("trial-03")) == (1, 0)


@pytest.mark.parametrize("stage", [TrialState.QUEUED, TrialState.RUN, TrialState.GRADE])
async def test_a_trial_is_cancelled_in_each_stage(tmp_path: Path, stage: TrialState) -> None:
    async with house(tmp_path, slots=1) as here:
        slow = {"kind": "verifier", "command": ["sleep", "1000"], "timeout_seconds": 900}
        script = {TrialState.GRADE: "true"}.get(stage, "setsid sleep 1000 & sleep 1000")
        if stage is TrialState.QUEUED:
            await here.submit("occupant", "sleep 1000")
        await here.submit("trial-01", script, reward=slow)
        await here.until("trial-01", stage)
        status = await here.client.cancel("trial-01")
        assert (status.state, status.stage) == (TrialState.CANCELLED, stage)
        await here.client.cancel("occupant")
        assert left(tmp_path) == []


async def test_a_trial_is_cancelled_while_it_is_set_up(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        many = here.folder / "many"
        many.mkdir()
        for number in range(3000):
            (many / str(number)).touch()
        await here.submit("trial-01", RAN.replace("$1", "trial-01"), runner={"folder": "many"})
        await here.until("trial-01", TrialState.SET_UP)
        assert (await here.client.cancel("trial-01")).stage is TrialState.SET_UP
        assert left(tmp_path) == []
        assert here.ran("trial-01") == 0


async def test_a_trial_that_was_cancelled_before_it_was_submitted_never_runs(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        assert (await here.client.cancel("trial-01")).state is TrialState.CANCELLED
        await here.submit("trial-01", RAN.replace("$1", "trial-01"))
        assert (await here.client.result("trial-01", seconds=60)).state is TrialState.CANCELLED
        assert here.ran("trial-01") == 0


async def test_a_stopped_program_is_graded(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        reward = {"kind": "file", "path": "reward"}
        await here.submit("trial-01", "echo 0.25 > reward; touch {config}/ready; sleep 1000", reward=reward)
        async with asyncio.timeout(60):
            while not (here.folder / "ready").exists():
                await asyncio.sleep(0.01)
        assert (await here.client.stop("trial-01")).state.has_run
        status = await here.client.result("trial-01", seconds=60)
        assert status.reward == Scored(0.25)
        assert status.out_of_time


async def test_a_full_queue_refuses_and_a_drained_server_too(tmp_path: Path) -> None:
    async with house(tmp_path, slots=1, queue=1) as here:
        await here.submit("trial-01", "sleep 1000")
        await here.submit("trial-02", "true")
        assert (await here.client.load()).room == 0
        with pytest.raises(AgentServerError, match="full"):
            await here.submit("trial-03", "true")
        await here.client.cancel("trial-01")
        await here.client.result("trial-02", seconds=60)
        assert (await here.client.drain()).draining
        with pytest.raises(AgentServerError, match="no more trials"):
            await here.submit("trial-03", "true")
        await here.client.drain(on=False)
        await here.submit("trial-03", "true")
        assert (await here.client.result("trial-03", seconds=60)).reward == Scored(1.0)


async def test_a_trial_that_nobody_asks_for_is_ended(tmp_path: Path) -> None:
    async with house(tmp_path, abandoned=0.1) as here:
        await here.submit("trial-01", "sleep 1000")
        live = here.trials.watch("trial-01")
        assert live is not None
        assert live.task is not None
        await asyncio.wait({live.task}, timeout=60)
        assert (await here.client.status("trial-01")).state is TrialState.ABANDONED
    assert left(tmp_path) == []


async def test_a_trial_s_key_opens_that_trial_only(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        own = await here.submit("trial-01", "sleep 1000")
        await here.submit("trial-02", "sleep 1000")
        async with AgentServer(here.client.url, own) as owner:
            assert (await owner.status("trial-01")).id == "trial-01"
            for refused in (
                owner.status("trial-02"),
                owner.cancel("trial-02"),
                owner.stop("trial-02"),
                owner.cancel("trial-03"),
                owner.status("unknown-1"),
                owner.list(),
                owner.load(),
                owner.drain(),
                anext(owner.events()),
                anext(owner.events("trial-02")),
                owner.submit("trial-01", TASK, runner={}, base_url="", api_key=""),
            ):
                with pytest.raises(ConfigError, match="401"):
                    await refused
            assert (await owner.cancel("trial-01")).state is TrialState.CANCELLED
        async with AgentServer(here.client.url, KEY[:-1]) as stranger:
            with pytest.raises(ConfigError, match="401"):
                await stranger.status("trial-01")
        assert (await here.client.status("trial-02")).state is not TrialState.CANCELLED


async def test_events_tell_all_stages(tmp_path: Path) -> None:
    async with house(tmp_path, slots=1) as here:
        await here.submit("occupant", "sleep 1000")
        await here.submit("trial-01", "true")
        states = []
        async for event in here.client.events("trial-01"):
            states.append(event["state"])
            if states == ["queued"]:
                await here.client.cancel("occupant")
        assert states == ["queued", "set-up", "run", "grade", "done"]
        assert {one.id for one in await here.client.list(all=True)} == {"occupant", "trial-01"}
        assert await here.client.list() == []


async def test_secrets_are_neither_shown_nor_stored(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        settings = {"runner": {"pass_env": ["PASSED"]}, "variables": {"PASSED": "a-passed-secret"}}
        await here.submit("trial-01", "echo [$OPENAI_API_KEY] [$PASSED] [$LOOPWRIGHT_AGENT_SERVER_KEY]", **settings)
        status = await here.client.result("trial-01", seconds=60)
        assert status.output is not None
        assert status.output.text.split() == ["[[redacted]]", "[[redacted]]", "[]"]
    for file in (tmp_path / "store").iterdir():
        assert MODEL_KEY.encode() not in file.read_bytes()
        assert b"a-passed-secret" not in file.read_bytes()


async def test_old_results_are_forgotten_and_their_ids_are_not(tmp_path: Path) -> None:
    async with house(tmp_path, keep=0.0) as here:
        await here.submit("trial-01", "true", reward=EXIT)
        async with asyncio.timeout(60):
            with suppress(AgentServerError):
                while await here.client.status("trial-01"):
                    await asyncio.sleep(0.05)
        with pytest.raises(AgentServerError, match="not kept"):
            await here.submit("trial-01", "true", reward=EXIT)


async def test_a_trial_whose_end_could_not_be_stored_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it would wait for ever."""

    def full(store: TrialStore, status: TrialStatus) -> None:
        raise RunError("the disk is full", remedy="see to it")

    async with house(tmp_path) as here:
        await here.submit("trial-01", "touch {config}/began; sleep 1000")
        await here.until("trial-01", TrialState.RUN)
        monkeypatch.setattr(TrialStore, "change", full)
        await here.client.cancel("trial-01")
        monkeypatch.undo()
        status = await here.client.result("trial-01", seconds=20)
        assert status.state is TrialState.LOST
        assert isinstance(status.error, AgentServerError)


async def test_a_trial_whose_events_are_listened_to_is_not_abandoned(tmp_path: Path) -> None:
    async with house(tmp_path, abandoned=0.5) as here:
        await here.submit("trial-01", "sleep 3")
        states = [event["state"] async for event in here.client.events("trial-01")]
        assert states[-1] == "done"


STAND_IN = """
import json, os, pathlib, sys, time
out = os.fdopen(int(sys.argv[2]), "w", buffering=1)
for name in ("agent_started", "agent_ended", "ended"):
    while not (said := pathlib.Path(BASE, name)).exists():
        time.sleep(0.01)
    out.write(json.dumps({"event": name, **json.loads(said.read_text())}) + "\\n")
"""
"""It tells of a trial of Harbor what the test says."""


def harbor_trial(folder: Path) -> dict[str, Any]:
    """How a trial of Harbor is submitted to the server of this folder."""
    task = folder / "tasks" / "t1"
    task.mkdir(parents=True)
    (task / "task.toml").touch()
    runner = {"kind": "harbor", "python": sys.executable, "agent": "oracle", "root": "tasks"}
    return {"runner": runner, "base_url": "http://127.0.0.1:1/v1", "api_key": MODEL_KEY}


async def test_the_stages_of_a_trial_are_those_of_harbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(tmp_path) as here:
        script, trial = tmp_path / "stand_in.py", harbor_trial(here.folder)
        script.write_text(f"BASE = {str(here.folder)!r}\n{STAND_IN}")
        monkeypatch.setattr(harbor, "SCRIPT", script)
        await here.client.submit("trial-01", TASK, **trial)
        for event, stage in (("agent_started", TrialState.SET_UP), ("agent_ended", TrialState.RUN)):
            await here.until("trial-01", stage)
            (here.folder / event).write_text('{"error": null}')
        await here.until("trial-01", TrialState.GRADE)
        (here.folder / "ended").write_text('{"rewards": {"reward": 0.5}, "reward_valid": true, "failure": null}')
        assert (await here.client.result("trial-01", seconds=60)).reward == Scored(0.5)
        lost = {"type": "E", "message": "gone", "cause": "sandbox_failed", "retry": True, "phase": "agent"}
        (here.folder / "agent_ended").write_text(json.dumps({"error": lost}))
        await here.client.submit("trial-02", TASK, **trial)
        status = await here.client.result("trial-02", seconds=60)
        assert (status.state, status.stage, status.reward) == (TrialState.DONE, TrialState.RUN, None)
        assert isinstance(status.error, TrialLostError)
    assert left(tmp_path) == []


async def test_a_trial_of_harbor_without_harbor_is_a_failed_set_up(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        trial = harbor_trial(here.folder)
        with pytest.raises(RefusedError, match="own verifier"):
            await here.client.submit("trial-01", TASK, reward=EXIT, **trial)
        await here.client.submit("trial-01", TASK, **trial)
        status = await here.client.result("trial-01", seconds=60)
        assert (status.state, status.stage) == (TrialState.DONE, TrialState.SET_UP)
        assert isinstance(status.error, SetupError)
        assert status.output is not None
        assert "harbor" in status.output.text
    assert left(tmp_path) == []
