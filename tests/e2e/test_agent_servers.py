"""Runs whose programs are on agent servers in other processes: servers die and queues are full, and the outcomes are
right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_kill import finish, start, wait_for_step
from test_program_agents import AGENT, WELL, trained

from loopwright import AgentServer
from loopwright.agents.runners.marks import VARIABLE, Owner
from loopwright.agents.trials.wire import TrialState
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.marked_processes import ProcessTable
from loopwright.types import Failed, FailureCause

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")]

WriteConfig = Callable[..., Path]
KEY = "key-of-the-agent-servers"
COUNTED = 'import os\nopen("{base}/ran", "a").write(os.environ["OPENAI_BASE_URL"] + "\\n")\n'


class Server:
    """An agent server in a process of its own, that can be killed and started again at the same place."""

    def __init__(self, folder: Path, base: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.store = folder / "trials.sqlite"
        self._command = [sys.executable, "-m", "loopwright.cli", "agent-server", "--base", str(base)]
        self._command += ["--store", str(self.store), *options]
        self._log = folder / "log.txt"
        self.port = 0

    def start(self) -> None:
        env = {**os.environ, "LOOPWRIGHT_AGENT_SERVER_KEY": KEY}
        with self._log.open("ab") as log:
            command = [*self._command, "--port", str(self.port)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        self.port = json.loads(line)["port"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def states(self) -> list[TrialState]:
        async def ask() -> list[TrialState]:
            async with AgentServer(self.url, KEY) as client:
                return [one.state for one in await client.list(all=True)]

        return asyncio.run(ask())

    def left(self) -> list[object]:
        run = Owner.here(self.store).run
        return [process for process in ProcessTable(VARIABLE).marked() if process.mark.startswith(run)]


@contextmanager
def servers(tmp_path: Path, *options: tuple[str, ...]) -> Iterator[list[Server]]:
    os.environ["AGENT_SERVER_KEY"] = KEY
    made = [Server(tmp_path / f"server{number}", tmp_path, *given) for number, given in enumerate(options)]
    with ExitStack() as stack:
        stack.callback(os.environ.pop, "AGENT_SERVER_KEY")
        for server in made:
            server.start()
            stack.callback(_end, server)
        yield made


def _end(server: Server) -> None:
    if server._process.poll() is None:
        server.end(signal.SIGTERM)


def agent(folder: Path, source: str, used: list[Server], **settings: Any) -> dict[str, Any]:
    (folder / "agent.py").write_text(COUNTED.replace("{base}", str(folder)) + source)
    inner = {"kind": "command", "command": ["python", "{config}/agent.py"], "stdin": "instruction"}
    runner = {"kind": "server", "urls": [one.url for one in used], "key_env": "AGENT_SERVER_KEY", "runner": inner}
    reward = {"kind": "file", "path": "reward.json"}
    return {"kind": "remote", "runner": {**runner, "wait_seconds": 2.0, **settings}, "reward": reward}


def check_run(tmp_path: Path, steps: int) -> list[Failed]:
    """The run is whole, no session had two programs, and all failures are infrastructure. Returns them."""
    rollouts = trained(tmp_path / "run")
    assert len(rollouts) == steps * 2 * 4
    for rollout in rollouts:
        assert rollout.episode is not None
        assert rollout.score == sum(letter in "aeiou" for letter in rollout.episode.answer) / 4
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean
    sessions = (tmp_path / "ran").read_text().splitlines()
    assert len(sessions) == len(set(sessions))
    attempts = [attempt.rollout for attempt in StoredRun(RunFolder(tmp_path / "run").rollouts).attempts()]
    failures = [rollout.reward for rollout in attempts if isinstance(rollout.reward, Failed)]
    assert {failure.cause for failure in failures} <= {FailureCause.INFRA}
    return failures


def configured(write_config: WriteConfig, agent: dict[str, Any], steps: int) -> Path:
    return write_config(
        agent=agent, eval=None, trainer__steps=steps, trainer__groups_per_step=2, produce__max_attempts=20
    )


def wait_for_programs(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not server.left():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_trains_a_program_on_a_server_with_a_short_queue(write_config: WriteConfig, tmp_path: Path) -> None:
    with servers(tmp_path, ("--slots", "2", "--queue", "0")) as (server,):
        finish(start(configured(write_config, agent(tmp_path, WELL, [server]), 2)))
        assert check_run(tmp_path, 2) == []
        assert server.states() == [TrialState.DONE] * 16
        assert server.left() == []


def test_a_server_is_killed_and_started_again(write_config: WriteConfig, tmp_path: Path) -> None:
    slow = WELL + "time.sleep(0.5)\n"
    with servers(tmp_path, ("--slots", "4")) as (server,):
        process = start(configured(write_config, agent(tmp_path, slow, [server], wait_seconds=60.0), 3))
        wait_for_step(tmp_path / "run", 1, process)
        wait_for_programs(server, process)
        server.end(signal.SIGKILL)
        server.start()
        finish(process)
        failures = check_run(tmp_path, 3)
        assert {failure.error for failure in failures} == {"AgentServerError"}
        assert server.states().count(TrialState.LOST) == len(failures)
        assert server.left() == []


def test_one_of_two_servers_dies(write_config: WriteConfig, tmp_path: Path) -> None:
    slow = WELL + "time.sleep(0.5)\n"
    with servers(tmp_path, ("--slots", "2"), ("--slots", "2")) as (first, second):
        process = start(configured(write_config, agent(tmp_path, slow, [first, second]), 3))
        wait_for_step(tmp_path / "run", 1, process)
        wait_for_programs(first, process)
        wait_for_programs(second, process)
        first.end(signal.SIGKILL)
        finish(process)
        assert {failure.error for failure in check_run(tmp_path, 3)} == {"AgentServerError"}
        # Its successor ends what it left behind.
        first.start()
        assert first.left() == []
        assert second.left() == []


def test_a_program_that_runs_out_of_time_is_ended_there_and_graded(write_config: WriteConfig, tmp_path: Path) -> None:
    hangs = AGENT + 'open("reward.json", "w").write(json.dumps({"reward": reward}))\ntime.sleep(1000)\n'
    with servers(tmp_path, ("--slots", "8")) as (server,):
        settings = {**agent(tmp_path, hangs, [server]), "max_seconds": 3.0}
        finish(start(configured(write_config, settings, 1)))
        assert check_run(tmp_path, 1) == []
        assert server.states() == [TrialState.DONE] * 8
        assert server.left() == []


def test_a_run_that_is_stopped_cancels_its_trials(write_config: WriteConfig, tmp_path: Path) -> None:
    with servers(tmp_path, ("--slots", "8")) as (server,):
        process = start(configured(write_config, agent(tmp_path, AGENT + "time.sleep(1000)", [server]), 1))
        wait_for_programs(server, process)
        process.send_signal(signal.SIGINT)
        finish(process)
        deadline = time.monotonic() + 60
        while not all(state.is_over for state in server.states()):
            assert time.monotonic() < deadline
        # A program is stopped first. What is graded before the cancellation arrives is done, and nobody asks for it.
        assert set(server.states()) <= {TrialState.CANCELLED, TrialState.DONE}
        assert server.left() == []
