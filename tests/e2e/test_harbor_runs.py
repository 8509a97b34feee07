"""Runs whose agents are trials of the real Harbor, on the host environment: rewards, failures, and nothing left behind.

They need Harbor in `.peers/harbor` (`make harbor`), namespaces and tmux. Elsewhere they are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_kill import start

from loopwright.agents.runners.marks import VARIABLE, Owner
from loopwright.buffer.auditing.audit import audit
from loopwright.buffer.reader import StoredRun
from loopwright.build import open_run
from loopwright.config import load
from loopwright.core.chains import turns_of
from loopwright.engines.http.model_card import ModelCard
from loopwright.models.tokenizer import load_tokenizer
from loopwright.serve.marked_processes import ProcessTable
from loopwright.testing.scripted_server import serve_scripted, text_engine
from loopwright.testing.tiny import tiny_llama
from loopwright.trainers.run_folder import RunFolder
from loopwright.types import Failed, FailureCause, Rollout, Scored, StopReason

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".peers" / "harbor" / "bin" / "python"
TASKS = ROOT / "examples" / "harbor" / "tasks"
CONTEXT = 1 << 15
PATIENCE = 240

WriteConfig = Callable[..., Path]


def _missing() -> str | None:
    if not PYTHON.exists():
        return "there is no Harbor in .peers/harbor: `make harbor` needs Python 3.12"
    namespaces = ["--mount", "--pid", "--fork", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if shutil.which("unshare") is None or subprocess.run(["unshare", *namespaces, "true"], check=False).returncode:
        return "this machine has no mount and process namespaces for us"
    return None


pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(why := _missing()), reason=str(why))]

AGENTS = '''
import asyncio, json, os, urllib.request
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.agents.oracle import OracleAgent
from harbor.agents.terminus_2 import Terminus2
from harbor.models.trial.paths import TrialPaths
from host_environment import HostEnvironment


class Asking(BaseAgent):
    """Asks the model once."""

    @staticmethod
    def name():
        return "asking"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        await asyncio.to_thread(self.ask, instruction)

    def ask(self, instruction):
        env = self._extra_env
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": instruction}]}).encode()
        headers = {"authorization": "Bearer " + env["OPENAI_API_KEY"], "content-type": "application/json"}
        request = urllib.request.Request(env["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=100) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]


class Raising(Asking):
    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        raise KeyError("broken on purpose")


class Oracle(Asking):
    """Harbor's oracle, after a call of the model: without one there is nothing to train."""

    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        trial = self.logs_dir.parent
        task = json.loads((trial / "config.json").read_text())["task"]["path"]
        oracle = OracleAgent(self.logs_dir, Path(task), TrialPaths(trial))
        await oracle.run(instruction, environment, context)


class Detailed(Terminus2):
    """terminus-2, which keeps what it was told of its tokens beside this file."""

    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        told = Path(__file__).with_name(f"{self.logs_dir.parent.name}.details")
        told.write_text(json.dumps(context.rollout_details))
'''

FLAKY = '''

class Flaky(HostEnvironment):
    """The verifier's files do not arrive, so often."""

    def __init__(self, *args, failures, **kwargs):
        super().__init__(*args, **kwargs)
        self.failures = failures

    async def upload_dir(self, source_dir, target_dir):
        if target_dir == "/tests" and self.failures:
            self.failures -= 1
            raise ConnectionError("the sandbox does not answer")
        await super().upload_dir(source_dir, target_dir)
'''

DONE = '{"analysis": "done", "plan": "none", "commands": [], "task_complete": true}'


def commands(keys: str, seconds: float = 0.1) -> str:
    said = '{"analysis": "first", "plan": "do it", "commands": [{"keystrokes": "%s\\n", "duration": %s}]}'
    return said % (keys, seconds)


class Script:
    """What the model says to terminus-2. Of the rollouts of one task, every second one does it wrong."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._begun = Counter[str]()
        self._hangs = hangs

    def __call__(self, prompt: str) -> str:
        if '"analysis": "first"' in prompt:
            return DONE
        name, keys = next((name, keys) for name, keys in SOLUTIONS.items() if name in prompt)
        self._begun[name] += 1
        if self._hangs:
            return commands(f"{keys}; sleep 1000", 60)
        return commands(keys if self._begun[name] % 2 else "touch /app/wrong")


SOLUTIONS = {
    "words.txt": "wc -w < /app/words.txt > /app/answer.txt",
    "greet.sh": "echo 'echo Hello, $1' > /app/greet.sh",
    "names.txt": "sort -u /app/names.txt > /app/sorted.txt",
}


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("wide") / "tiny", max_position_embeddings=CONTEXT)


@asynccontextmanager
async def scene(
    write_config: WriteConfig, model: Path, script: Callable[[str], str], agent: str = "terminus-2", **more: Any
) -> AsyncIterator[Path]:
    """A config, while a scripted engine runs that it names."""
    engine = text_engine(script, load_tokenizer(str(model)))
    async with serve_scripted(engine, ModelCard(str(model), CONTEXT)) as url:
        runner: dict[str, Any] = {"kind": "harbor", "python": str(PYTHON), "agent": agent}
        if agent in ("terminus-2", "agents:Detailed"):
            info = {"max_input_tokens": CONTEXT, "max_output_tokens": 1024}
            runner["agent_args"] = {"record_terminal_session": False, "model_info": info, "enable_summarize": False}
            runner["agent_args"] |= more.pop("agent_args", {})
        settings: dict[str, Any] = {
            "model__path": str(model),
            "data": {"kind": "harbor", "path": str(TASKS), "shuffle": False},
            "agent": {"kind": "remote", "runner": {**runner, **more.pop("runner", {})}, **more.pop("program", {})},
            "judgers": {},
            "produce": {
                "kind": "async",
                "max_staleness": 0,
                "max_attempts": 1,
                "failure_budget": 1,
                "agent_timeout_seconds": 200.0,
            },
            "rollout__samples_per_task": 2,
            "rollout__concurrency": 8,
            "rollout__max_new_tokens": 1024,
            "rollout__engine": {"kind": "loopwright", "urls": [url], "proof": "off"},
            "trainer__kind": "disaggregated",
            "trainer__steps": 1,
            "trainer__groups_per_step": 3,
            "trainer__export": False,
            "eval": None,
        }
        file = write_config(**{**settings, **more})
        (file.parent / "agents.py").write_text(AGENTS + FLAKY)
        yield file


async def trained(file: Path) -> list[Rollout]:
    """Train in this process's loop, where the engine is served, and return all rollouts."""
    async with open_run(load(file, [], {}), cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        assert await opened.train()
    return rollouts_of(opened.folder)


def rollouts_of(folder: RunFolder) -> list[Rollout]:
    return [attempt.rollout for attempt in StoredRun(folder.rollouts).attempts()]


def left(folder: Path) -> list[object]:
    """Processes, folders and mounts of the run that are still there."""
    owner = Owner.here(folder)
    workspace = Path("/tmp") if "TMPDIR" not in os.environ else Path(os.environ["TMPDIR"])
    workspace /= f"loopwright-{os.getuid()}"
    processes = [one for one in ProcessTable(VARIABLE).marked() if one.mark.startswith(owner.run)]
    folders = [path for path in workspace.iterdir() if path.name.startswith(owner.run)] if workspace.is_dir() else []
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if owner.run in line]
    return [*processes, *folders, *mounts]


async def test_terminus_is_trained_on_the_three_tasks(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    async with scene(write_config, wide_model, Script(), rollout__samples_per_task=4) as file:
        rollouts = await trained(file)
    by_task: dict[str, list[float]] = {one.task.id: [] for one in rollouts}
    for one in rollouts:
        assert isinstance(one.reward, Scored), one.reward
        by_task[one.task.id].append(one.reward.value)
    assert {name: sorted(rewards) for name, rewards in by_task.items()} == {
        name: [0.0, 0.0, 1.0, 1.0] for name in ("count-words", "fix-script", "sort-lines")
    }
    assert all(one.episode is not None and len(one.episode.chains) == 1 for one in rollouts)
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean
    assert left(tmp_path / "run") == []


async def test_terminus_collects_the_tokens_that_are_trained(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    details = {"agent_args": {"collect_rollout_details": True}, "trainer__groups_per_step": 1}
    async with scene(write_config, wide_model, Script(), "agents:Detailed", **details) as file:
        rollouts = await trained(file)
        told = [json.loads(kept.read_text()) for kept in file.parent.glob("*.details")]
    collected = []
    for (detail,) in told:
        # terminus-2 asks once more whether the task is complete.
        assert len(detail["prompt_token_ids"]) == 3
        streams = zip(detail["prompt_token_ids"], detail["completion_token_ids"], detail["logprobs"], strict=True)
        collected.append([(tuple(prompt), tuple(ids), tuple(odds)) for prompt, ids, odds in streams])
    recorded = []
    for one in rollouts:
        assert one.episode is not None
        (chain,) = one.episode.chains
        recorded.append([(turn.prompt_ids, turn.ids, turn.logprobs) for turn in turns_of(chain)])
    assert len(recorded) == 2
    assert sorted(collected) == sorted(recorded)


async def test_the_oracle_solves_the_three_tasks(write_config: WriteConfig, wide_model: Path, tmp_path: Path) -> None:
    async with scene(write_config, wide_model, lambda prompt: "yes", "agents:Oracle") as file:
        rollouts = await trained(file)
    assert [one.reward.value for one in rollouts if isinstance(one.reward, Scored)] == [1.0] * 6
    assert {one.reward.parts.get("exists") for one in rollouts if isinstance(one.reward, Scored)} == {None, 1.0}
    assert left(tmp_path / "run") == []


@pytest.mark.parametrize("limit", ["ours", "the task's"])
async def test_an_agent_that_runs_out_of_time_is_graded(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, limit: str
) -> None:
    ours: dict[str, Any] = (
        {"program": {"max_seconds": 5.0}} if limit == "ours" else {"runner": {"timeout_multiplier": 0.1}}
    )
    async with scene(write_config, wide_model, Script(hangs=True), **ours) as file:
        rollouts = await trained(file)
    assert [one.reward.value for one in rollouts if isinstance(one.reward, Scored)] == [1.0] * 6
    if limit == "ours":
        assert {one.episode.stop for one in rollouts if one.episode} == {StopReason.BUDGET}
    assert left(tmp_path / "run") == []


@pytest.mark.parametrize("on_error", ["fail", "grade"])
async def test_an_agent_that_raises_fails_with_its_cause(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, on_error: str
) -> None:
    program = {"program": {"on_agent_error": on_error}}
    async with scene(
        write_config, wide_model, lambda prompt: "yes", "agents:Raising", trainer__groups_per_step=1, **program
    ) as file:
        if on_error == "grade":
            rollouts = await trained(file)
            assert [one.reward.value for one in rollouts if isinstance(one.reward, Scored)] == [0.0, 0.0]
        else:
            with pytest.raises(Exception, match="failed"):
                await trained(file)
            failures = [one.reward for one in rollouts_of(RunFolder(tmp_path / "run"))]
            assert failures
            assert all(isinstance(one, Failed) and one.cause is FailureCause.AGENT for one in failures), failures
            assert all(isinstance(one, Failed) and "broken on purpose" in one.detail for one in failures)
    assert left(tmp_path / "run") == []


@pytest.mark.parametrize("failures", [1, 9])
async def test_a_grader_that_cannot_be_reached_is_tried_again_and_never_worth_0(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path, failures: int
) -> None:
    flaky = {"environment": "agents:Flaky", "environment_args": {"failures": failures}}
    async with scene(
        write_config, wide_model, lambda prompt: "yes", "agents:Oracle", runner=flaky, trainer__groups_per_step=1
    ) as file:
        if failures == 1:
            rollouts = await trained(file)
            assert [one.reward.value for one in rollouts if isinstance(one.reward, Scored)] == [1.0, 1.0]
        else:
            with pytest.raises(Exception, match="failed"):
                await trained(file)
            told = [one.reward for one in rollouts_of(RunFolder(tmp_path / "run"))]
            assert told
            assert all(isinstance(one, Failed) and one.cause is FailureCause.VERIFIER for one in told), told
    assert left(tmp_path / "run") == []


async def test_an_environment_that_cannot_be_made_is_a_failed_set_up(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:
    nowhere = {"runner": {"environment": "agents:Nowhere"}, "trainer__groups_per_step": 1}
    async with scene(write_config, wide_model, lambda prompt: "yes", "agents:Asking", **nowhere) as file:
        with pytest.raises(Exception, match="failed"):
            await trained(file)
    failures = [one.reward for one in rollouts_of(RunFolder(tmp_path / "run"))]
    assert all(isinstance(one, Failed) and one.cause is FailureCause.SETUP for one in failures), failures
    assert left(tmp_path / "run") == []


async def test_a_killed_run_leaves_nothing_behind(write_config: WriteConfig, wide_model: Path, tmp_path: Path) -> None:
    """Not even until it is resumed: a trial whose run is gone ends by itself. Only its folder waits."""

    async with scene(write_config, wide_model, Script(hangs=True)) as file:
        process = start(file)
        try:
            async with asyncio.timeout(PATIENCE):
                while not await asyncio.to_thread(_sandboxes, tmp_path / "run"):
                    assert process.poll() is None, (tmp_path / "output.txt").read_text()
                    await asyncio.sleep(0.1)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                while await asyncio.to_thread(_processes, tmp_path / "run"):
                    await asyncio.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    for folder in left(tmp_path / "run"):
        assert isinstance(folder, Path)
        shutil.rmtree(folder)


async def test_an_interrupted_run_leaves_nothing_behind(
    write_config: WriteConfig, wide_model: Path, tmp_path: Path
) -> None:

    async with scene(write_config, wide_model, Script(hangs=True)) as file:
        process = start(file)
        try:
            async with asyncio.timeout(PATIENCE):
                while not await asyncio.to_thread(_sandboxes, tmp_path / "run"):
                    assert process.poll() is None, (tmp_path / "output.txt").read_text()
                    await asyncio.sleep(0.1)
                process.send_signal(signal.SIGINT)
                while process.poll() is None:
                    await asyncio.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    assert left(tmp_path / "run") == []


def _processes(folder: Path) -> list[Any]:
    return [one for one in left(folder) if not isinstance(one, Path | str)]


def _sandboxes(folder: Path) -> list[Any]:
    """Processes that run a command in a sandbox."""

    def words(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    return [one for one in _processes(folder) if b"tmux" in words(one.pid)]
