"""Runs whose agents are trials of the real Harbor, beside the run or on an agent server: rewards, failures, kills, and
nothing left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harbor_scene import (
    AGENTS,
    NAMES,
    PATIENCE,
    PYTHON,
    TASKS,
    Script,
    attempts_of,
    ended,
    left,
    needs_harbor,
    needs_tmux,
    processes,
    scene,
    trained,
    training,
    until,
)
from test_agent_servers import KEY, Server, servers

from loopwright import AgentServer, Task
from loopwright.agents.trials.wire import TrialState
from loopwright.build import open_run
from loopwright.config import load
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.testing.tiny import tiny_llama
from loopwright.types import Failed, FailureCause, Rollout, Scored, StopReason

pytestmark = [*needs_harbor, pytest.mark.timeout(900)]

WriteConfig = Callable[..., Path]
CONTEXT = 1 << 15


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("wide") / "tiny", max_position_embeddings=CONTEXT)


@pytest.fixture(params=["beside the run", "on a server"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Server]]:
    """The agent servers that have the trials: none or one."""
    with ExitStack() as stack:
        asked = [] if request.param == "beside the run" else [("--slots", "8")]
        yield stack.enter_context(servers(tmp_path, *asked))


def urls(used: list[Server]) -> list[str]:
    return [one.url for one in used]


def nothing_is_left(folder: Path, used: list[Server]) -> bool:
    assert left(folder / "run") == []
    assert [one for server in used for one in left(server.store)] == []
    return True


def scores(rollouts: list[Rollout]) -> dict[str, list[float]]:
    """By task."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for one in rollouts:
        if isinstance(one.reward, Scored):
            found[one.task.id].append(one.reward.value)
    return {name: sorted(values) for name, values in found.items()}


@needs_tmux
@pytest.mark.parametrize(
    "elsewhere", ["beside the run", pytest.param("on a server", marks=pytest.mark.long)], indirect=True
)
async def test_terminus_is_trained_on_the_three_tasks(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, elsewhere: list[Server]
) -> None:
    async with scene(write_config, wide_model, "terminus-2", Script(), servers=urls(elsewhere)) as file:
        rollouts = await trained(file)
    assert scores(rollouts) == {name: [0.0, 1.0] for name in NAMES}
    assert len(rollouts) == 6
    assert all(one.episode is not None and len(one.episode.chains) == 1 for one in rollouts)
    assert nothing_is_left(tmp_path, elsewhere)


async def test_eight_at_once_are_solved_run_out_of_time_or_raise(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, elsewhere: list[Server]
) -> None:
    """Eight agents wait for one another, so the test ends only if eight trials overlap."""
    tasks = shutil.copytree(TASKS, tmp_path / "tasks")
    limited = tasks / "fix-script" / "task.toml"
    limited.write_text(limited.read_text().replace("60.0", "8.0", 1))
    (tmp_path / "meeting").mkdir()
    runner = {"agent_args": {"folder": str(tmp_path / "meeting")}, "timeout_multiplier": 1.0}
    for name in ("count-words", "sort-lines"):
        other = tasks / name / "task.toml"
        other.write_text(other.read_text().replace("60.0", "200.0", 1))
    async with scene(
        write_config,
        wide_model,
        "agents:Mixed",
        servers=urls(elsewhere),
        runner=runner,
        attempts=2,
        rollout__samples_per_task=4,
        data={"kind": "harbor", "path": str(tasks), "shuffle": False},
    ) as file:
        rollouts = await trained(file)
    assert scores(rollouts) == {name: [1.0] * 4 for name in NAMES}
    assert {one.reward.parts.get("exists") for one in rollouts if isinstance(one.reward, Scored)} == {None, 1.0}
    failures = [one for one in rollouts if isinstance(one.reward, Failed)]
    assert [one.task.id for one in failures] == ["sort-lines"] * 4
    assert all(one.reward.cause is FailureCause.AGENT for one in failures if isinstance(one.reward, Failed))
    assert all("broken on purpose" in one.reward.detail for one in failures if isinstance(one.reward, Failed))
    assert nothing_is_left(tmp_path, elsewhere)


async def test_a_run_is_interrupted_while_trials_are_in_each_stage(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, elsewhere: list[Server]
) -> None:
    meeting = {"folder": str(tmp_path / "meeting")}
    (tmp_path / "meeting").mkdir()
    stuck = {"agent_args": meeting, "environment": "agents:Stuck", "environment_args": meeting}

    def all_stages() -> bool:
        stages = [file.name.rsplit("-", 1)[0] for file in (tmp_path / "meeting").iterdir()]
        return all(stages.count(stage) == 2 for stage in ("set-up", "run", "grade"))

    async with (
        scene(write_config, wide_model, "agents:Hanging", servers=urls(elsewhere), runner=stuck) as file,
        training(file) as process,
    ):
        await until(all_stages, file, process)
        for server in elsewhere:
            states = await asyncio.to_thread(server.states)
            assert sorted(states) == sorted([TrialState.SET_UP, TrialState.RUN, TrialState.GRADE] * 2)
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 0, (tmp_path / "output.txt").read_text()
    for server in elsewhere:
        states = await asyncio.to_thread(server.states)
        assert set(states) <= {TrialState.CANCELLED, TrialState.DONE}
    assert nothing_is_left(tmp_path, elsewhere)
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean


async def test_servers_die_in_the_middle_and_no_session_has_two_programs(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    """Two servers with too little room for the run. One is killed for good, the other one is started again."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    small = ("--slots", "2", "--queue", "0")
    with servers(tmp_path, small, small) as (first, second):

        def began() -> int:
            return len(list(meeting.glob("began-*")))

        gated = {"agent_args": {"folder": str(meeting)}}
        async with (
            scene(
                write_config, wide_model, "agents:Gated", servers=urls([first, second]), runner=gated, attempts=20
            ) as file,
            training(file) as process,
        ):
            await until(lambda: began() == 4, file, process)
            first.end(signal.SIGKILL)
            # Its trials end although nobody tells them to.
            await until(lambda: processes(first.store) == [], file, process)
            assert len(processes(second.store)) > 0
            second.end(signal.SIGKILL)
            second.start()
            await until(lambda: began() >= 6, file, process)
            (meeting / "go").touch()
            assert await ended(process) == 0, (tmp_path / "output.txt").read_text()
        rollouts = attempts_of(RunFolder(tmp_path / "run"))
        assert scores(rollouts) == {name: [1.0, 1.0] for name in NAMES}
        failures = [one.reward for one in rollouts if isinstance(one.reward, Failed)]
        assert len(failures) >= 4
        assert {(one.cause, one.error) for one in failures} == {(FailureCause.INFRA, "AgentServerError")}
        sessions = [file.name.split("-", 1)[1].rsplit("-", 1)[0] for file in meeting.glob("began-*")]
        assert len(sessions) == len(set(sessions))
        assert (await asyncio.to_thread(second.states)).count(TrialState.LOST) == 2
        first.start()
        assert nothing_is_left(tmp_path, [first, second])
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean


async def test_what_a_killed_server_had_in_any_stage_is_lost_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    (tmp_path / "agents.py").write_text(AGENTS)
    runner = {
        "kind": "harbor",
        "python": str(PYTHON),
        "agent": "agents:Idle",
        "root": str(TASKS),
        "environment": "agents:Stuck",
        "environment_args": {"folder": str(tmp_path / "meeting")},
    }
    stages = dict(
        zip((*NAMES, "waits"), (TrialState.SET_UP, TrialState.RUN, TrialState.GRADE, TrialState.QUEUED), strict=True)
    )

    def began() -> int:
        """How many environments stand in their set-up or in their grading. A trial's stage begins before that."""
        return len(list((tmp_path / "meeting").iterdir()))

    async def submit(client: AgentServer, name: str) -> None:
        task = Task.ask(name, "Do it.")
        await client.submit(f"trial-{name}", task, runner=runner, base_url="http://127.0.0.1:1/v1", api_key="key")

    with servers(tmp_path, ("--slots", "3")) as (server,):
        async with AgentServer(server.url, KEY) as client:
            for name in NAMES:
                await submit(client, name)
            await submit(client, "waits")
            expected = {f"trial-{name}": stage for name, stage in stages.items()}
            async with asyncio.timeout(PATIENCE):
                while {one.id: one.state for one in await client.list()} != expected or began() != 2:
                    await asyncio.sleep(0.2)
            server.end(signal.SIGKILL)
            server.start()
            assert left(server.store) == []
            for name, stage in stages.items():
                for _ in range(2):
                    status = await client.status(f"trial-{name}")
                    assert (status.state, status.stage) == (TrialState.LOST, stage)
                    await submit(client, name)
            assert await client.list() == []
            assert began() == 2
            assert left(server.store) == []


async def test_a_killed_run_leaves_nothing_behind(write_config: WriteConfig, wide_model: Path, tmp_path: Path) -> None:
    """Not even until it is resumed: a trial whose run is gone ends by itself. Only its folder waits."""
    (tmp_path / "meeting").mkdir()
    hanging = {"agent_args": {"folder": str(tmp_path / "meeting")}}
    async with scene(write_config, wide_model, "agents:Hanging", runner=hanging) as file, training(file) as process:
        await until(lambda: len(list((tmp_path / "meeting").iterdir())) == 4, file, process)
        process.kill()
        process.wait()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(processes, tmp_path / "run"):
                await asyncio.sleep(0.1)
    for folder in left(tmp_path / "run"):
        assert isinstance(folder, Path)
        shutil.rmtree(folder)


async def opened_and_trained(file: Path) -> list[Rollout]:
    """Train in this process, which starts sooner than `loopwright train`, and return all attempts at rollouts."""
    async with open_run(load(file, [], {}), cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        assert await opened.train()
    return attempts_of(opened.folder)


async def failed(file: Path) -> list[Failed]:
    """The failures of a run that is given up because of them."""
    with pytest.raises(Exception, match="failed"):
        await opened_and_trained(file)
    rewards = [one.reward for one in attempts_of(RunFolder(file.parent / "run"))]
    assert rewards
    assert all(isinstance(one, Failed) for one in rewards)
    return [one for one in rewards if isinstance(one, Failed)]


async def test_an_agent_that_runs_out_of_the_runs_time_is_graded(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "meeting").mkdir()
    hanging = {"agent_args": {"folder": str(tmp_path / "meeting")}}
    async with scene(
        write_config,
        wide_model,
        "agents:Hanging",
        runner=hanging,
        program={"max_seconds": 6.0},
        trainer__groups_per_step=1,
    ) as file:
        rollouts = await opened_and_trained(file)
    assert scores(rollouts)["count-words"] == [1.0, 1.0]
    assert {one.episode.stop for one in rollouts if one.episode} == {StopReason.BUDGET}
    assert nothing_is_left(tmp_path, [])


async def test_an_agent_that_raises_is_graded_if_the_config_says_so(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    graded: dict[str, Any] = {"program": {"on_agent_error": "grade"}, "trainer__groups_per_step": 1}
    async with scene(write_config, wide_model, "agents:Raising", **graded) as file:
        rollouts = await opened_and_trained(file)
    assert scores(rollouts)["count-words"] == [0.0, 0.0]
    assert nothing_is_left(tmp_path, [])


@pytest.mark.parametrize("failures", [1, 9])
async def test_a_grader_that_cannot_be_reached_is_tried_again_and_never_worth_0(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, failures: int
) -> None:
    flaky = {"environment": "agents:Flaky", "environment_args": {"failures": failures}}
    async with scene(write_config, wide_model, "agents:Oracle", runner=flaky, trainer__groups_per_step=1) as file:
        if failures == 1:
            assert scores(await opened_and_trained(file))["count-words"] == [1.0, 1.0]
        else:
            assert {one.cause for one in await failed(file)} == {FailureCause.VERIFIER}
    assert nothing_is_left(tmp_path, [])


async def test_an_environment_that_cannot_be_made_is_a_failed_set_up(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    nowhere = {"environment": "agents:Nowhere"}
    async with scene(write_config, wide_model, "agents:Asking", runner=nowhere, trainer__groups_per_step=1) as file:
        assert {one.cause for one in await failed(file)} == {FailureCause.SETUP}
    assert nothing_is_left(tmp_path, [])
