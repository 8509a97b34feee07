"""The harbor runner without Harbor: where tasks are, and what becomes of what a trial tells. A script that tells it
stands in for Harbor."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.runners import harbor
from loopwright.agents.runners.harbor import HarborRunner
from loopwright.agents.runners.harbor_paths import task_folder
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.in_harbor.trial_process import WatchedTrial, numbers_of
from loopwright.config import HarborRunnerConfig, ParquetData
from loopwright.data import open_source
from loopwright.data.harbor import read_tasks
from loopwright.data.harbor_table import write_table
from loopwright.errors import LoopwrightError, ProgramError, SetupError, TrialLostError
from loopwright.ports import Endpoint
from loopwright.types import Failed, FailureCause, RolloutKey, RolloutRequest, Sampling, Scored, Split, Task

ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "key", "http://127.0.0.1:1", "model")

SCRIPT = """
import json, os, sys
control, events = map(int, sys.argv[1:])
request = json.load(sys.stdin)
out = os.fdopen(events, "w", buffering=1)
for line in {lines!r}:
    if line == "wait":
        os.read(control, 1)
    else:
        out.write(json.dumps(line) + "\\n")
"""


def agent_ended(error: Any = None) -> dict[str, Any]:
    return {"event": "agent_ended", "error": error}


def ended(rewards: Any = None, valid: bool = True, failure: Any = None) -> dict[str, Any]:
    return {"event": "ended", "rewards": rewards, "reward_valid": valid, "failure": failure}


def failure(phase: str, cause: str = "unclassified", retry: bool = True) -> dict[str, Any]:
    return {"type": "SomeError", "message": "it broke", "cause": cause, "retry": retry, "phase": phase}


def made_task(folder: Path, name: str = "one") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "task.toml").touch()
    return folder / name


class Played:
    """What a trial that tells these lines comes to."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path
        self.patch = monkeypatch

    async def __call__(self, *lines: Any, seconds: float = 30.0, **settings: Any) -> tuple[Any, Any]:
        script = self.folder / "script.py"
        script.write_text(SCRIPT.format(lines=list(lines)))
        self.patch.setattr(harbor, "SCRIPT", script)
        place = self.folder / "tasks" / "one"
        task = Task.ask("one", "do", path=str(place if place.exists() else made_task(place.parent)))
        host = ProgramHost.here(self.folder, self.folder / "run", dict(os.environ), {})
        config = HarborRunnerConfig(python=sys.executable, agent="oracle", grader_seconds=20.0)
        request = RolloutRequest(Split.TRAIN, RolloutKey("train", 0, 0), task, Sampling(), 60.0)
        async with HarborRunner(config, host, **settings) as runner, runner.prepared(request) as trial:
            error: LoopwrightError | None = None
            try:
                async with asyncio.timeout(seconds):
                    await trial.run(ENDPOINT)
            except LoopwrightError as raised:
                error = raised
            except TimeoutError:
                pass
            reward = await trial.reward()
        assert not list(host.workspace.glob(f"{host.owner.name}*"))
        return error, reward


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(tmp_path, monkeypatch)


async def test_a_reward_is_what_the_verifier_gave(played: Played) -> None:
    error, reward = await played(agent_ended(), ended({"reward": 0.5, "style": 1}))
    assert error is None
    assert reward == Scored(0.5, {"style": 1.0})


@pytest.mark.parametrize(
    "rewards", [None, {}, {"other": 1.0}, {"reward": "NaN"}, {"reward": 10**400}, {"reward": True}]
)
async def test_no_reward_is_a_failure_and_never_0(played: Played, rewards: Any) -> None:
    _, reward = await played(agent_ended(), ended(rewards, valid=bool(rewards)))
    assert isinstance(reward, Failed)
    assert reward.cause is FailureCause.VERIFIER


async def test_a_grader_that_fails_is_a_failure_with_its_words(played: Played) -> None:
    error, reward = await played(agent_ended(), ended(None, False, failure("verifier", "sandbox_failed")))
    assert error is None
    assert isinstance(reward, Failed)
    assert "SomeError: it broke" in reward.detail


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ([agent_ended(failure("agent"))], ProgramError),
        ([agent_ended(failure("agent", "model_provider_failed", retry=False))], ProgramError),
        ([agent_ended(failure("agent", "model_provider_failed"))], TrialLostError),
        ([agent_ended(failure("agent", "sandbox_failed"))], TrialLostError),
        ([ended(None, False, failure("setup", "sandbox_failed"))], SetupError),
        ([ended(None, False, failure("setup"))], SetupError),
        ([], SetupError),
    ],
)
async def test_what_harbor_reports_becomes_a_typed_error(
    played: Played, told: list[Any], kind: type[LoopwrightError]
) -> None:
    error, reward = await played(*told)
    assert type(error) is kind
    assert isinstance(reward, Failed)


async def test_an_agent_that_raised_is_graded_if_the_config_says_so(played: Played) -> None:
    broken = failure("agent")
    error, reward = await played(agent_ended(broken), ended({"reward": 1.0}, False, broken), grades_failures=True)
    assert isinstance(error, ProgramError)
    assert reward == Scored(1.0)
    _, reward = await played(agent_ended(broken), ended({"reward": 1.0}, False, broken))
    assert isinstance(reward, Failed)


async def test_an_agent_whose_time_is_up_is_stopped_and_graded(played: Played) -> None:
    error, reward = await played("wait", agent_ended(), ended({"reward": 1.0}), seconds=5.0)
    assert error is None
    assert reward == Scored(1.0)


def test_a_trial_that_is_stopped_before_its_agent_has_begun_ends_at_once() -> None:
    assert not WatchedTrial({}, print).stop()


def test_of_many_numbers_of_a_verifier_the_reward_is_told() -> None:
    many: dict[str, Any] = {f"n{number}": 1 for number in range(10_000)}
    told = numbers_of({**many, "text": "x", "reward": 0.5})
    assert told is not None
    assert told["reward"] == 0.5
    assert len(told) < 1000
    assert (numbers_of(None), numbers_of(1)) == (None, {"reward": 1})


async def test_a_judger_scores_a_trial_that_is_not_graded(played: Played) -> None:
    assert await played(agent_ended(), ended(), grades=False) == (None, None)


def test_a_task_is_found_at_its_path_else_under_the_root_else_by_the_template(tmp_path: Path) -> None:
    own, under, other = (made_task(tmp_path / name) for name in ("own", "root", "other"))
    config = HarborRunnerConfig(python="python", agent="nop", root="root", folder="other/{task.id}")
    task = Task.ask("one", "do", path=str(own))
    for expected in (own, under, other):
        assert task_folder(task, config, tmp_path) == expected
        (expected / "task.toml").unlink()
    with pytest.raises(SetupError, match="looked at"):
        task_folder(task, config, tmp_path)


def test_an_edited_task_of_a_file_is_refused(tmp_path: Path) -> None:
    """The file has the old instruction, and the folder the new verifier."""
    place = made_task(tmp_path / "tasks")
    (place / "instruction.md").write_text("Do it.")
    (place / "environment").mkdir()
    (place / "tests").mkdir()
    (place / "tests" / "test.sh").write_text("echo 1")
    write_table(read_tasks(tmp_path / "tasks"), tmp_path / "tasks.parquet")
    config = HarborRunnerConfig(python="python", agent="nop", root="copies")

    def from_file() -> Path:
        return task_folder(open_source(ParquetData(path="tasks.parquet"), tmp_path)[0], config, tmp_path)

    assert from_file() == place
    (place / "tests" / "test.sh").write_text("echo 0")
    with pytest.raises(SetupError, match="has changed since the task was read"):
        from_file()
    write_table(read_tasks(tmp_path / "tasks"), tmp_path / "tasks.parquet")
    assert from_file() == place
    # A copy elsewhere is as good, if it is the same.
    shutil.move(place, tmp_path / "copies" / "one")
    assert from_file() == tmp_path / "copies" / "one"
    (tmp_path / "copies" / "one" / "instruction.md").write_text("Do that.")
    with pytest.raises(SetupError, match="has changed"):
        from_file()


@pytest.mark.parametrize("name", ["../own", "/etc"])
def test_a_tasks_name_does_not_lead_out_of_the_root(tmp_path: Path, name: str) -> None:
    config = HarborRunnerConfig(python="python", agent="nop", root="root")
    with pytest.raises(SetupError, match="leads out"):
        task_folder(Task.ask(name, "do"), config, tmp_path)
