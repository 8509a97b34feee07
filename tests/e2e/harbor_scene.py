"""The real Harbor for tests of whole runs: agents, a scripted engine, and what is left on the machine.

Harbor is in `.peers/harbor` (`make harbor`). Where it, or namespaces, are missing, its tests are skipped."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_kill import start

from loopwright.agents.runners.marks import VARIABLE, Owner
from loopwright.engines.http.model_card import ModelCard
from loopwright.models.tokenizer import load_tokenizer
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.marked_processes import ProcessTable
from loopwright.testing.scripted_server import serve_scripted, text_engine
from loopwright.types import Rollout

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".peers" / "harbor" / "bin" / "python"
TASKS = ROOT / "examples" / "harbor" / "tasks"
NAMES = ("count-words", "fix-script", "sort-lines")
CONTEXT = 1 << 15
PATIENCE = 240

WriteConfig = Callable[..., Path]


def _missing() -> str | None:
    if not (PYTHON.parents[1] / ".ready").exists():
        return "there is no Harbor in .peers/harbor: `make harbor` needs Python 3.12"
    namespaces = ["--mount", "--pid", "--fork", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if shutil.which("unshare") is None or subprocess.run(["unshare", *namespaces, "true"], check=False).returncode:
        return "this machine has no mount and process namespaces for us"
    return None


needs_harbor = [pytest.mark.real, pytest.mark.skipif(bool(why := _missing()), reason=str(why))]
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="terminus-2 needs tmux")

AGENTS = '''
import asyncio, json, os, sys, types, urllib.request
from pathlib import Path

# Harbor imports LiteLLM, which takes four seconds, to learn from a model's name whose it is. These agents do not ask.
whose = types.SimpleNamespace(get_llm_provider=lambda model: (model, "openai", None, None))
sys.modules["harbor.llms.litellm_config"] = types.SimpleNamespace(litellm=whose)

from harbor.agents.base import BaseAgent
from harbor.agents.oracle import OracleAgent
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


class Idle(Asking):
    """Never ends, but for sort-lines."""

    async def run(self, instruction, environment, context):
        if environment.environment_dir.parent.name != "sort-lines":
            await environment.exec("sleep 1000")


class Raising(Asking):
    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        raise KeyError("broken on purpose")


class Oracle(Asking):
    """Harbor's oracle, after a call of the model: without one there is nothing to train."""

    @property
    def task(self):
        return Path(json.loads((self.logs_dir.parent / "config.json").read_text())["task"]["path"])

    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        oracle = OracleAgent(self.logs_dir, self.task, TrialPaths(self.logs_dir.parent))
        await oracle.run(instruction, environment, context)


class Meeting(Oracle):
    """Has a folder that all trials of the test see."""

    def __init__(self, *args, folder, **kwargs):
        super().__init__(*args, **kwargs)
        self.folder = Path(folder)

    def arrive(self, what):
        (self.folder / f"{what}-{os.getpid()}").touch()

    def arrived(self, what):
        return len(list(self.folder.glob(f"{what}-*")))


class Mixed(Meeting):
    """fix-script solves its task and never ends. All others go on when eight of them are there. Then the first four of
    sort-lines raise."""

    async def run(self, instruction, environment, context):
        if self.task.name == "fix-script":
            await super().run(instruction, environment, context)
            await environment.exec("sleep 1000")
        was_complete = self.arrived("met") >= 8
        self.arrive("met")
        while self.arrived("met") < 8:
            await asyncio.sleep(0.5)
        await super().run(instruction, environment, context)
        if self.task.name == "sort-lines" and not was_complete:
            raise KeyError("broken on purpose")


class Gated(Meeting):
    """Notes its session, and goes on when the test says so."""

    async def run(self, instruction, environment, context):
        session = self._extra_env["OPENAI_BASE_URL"].split("/")[-2]
        (self.folder / f"began-{session}-{os.getpid()}").touch()
        while not (self.folder / "go").exists():
            await asyncio.sleep(0.5)
        await super().run(instruction, environment, context)


class Hanging(Meeting):
    """Never ends, but for sort-lines."""

    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        if self.task.name != "sort-lines":
            self.arrive("run")
            await environment.exec("sleep 1000 & setsid sleep 1000")


class Stuck(HostEnvironment):
    """The set-up of count-words never ends, and neither does the verifier of sort-lines."""

    def __init__(self, *args, folder, **kwargs):
        super().__init__(*args, **kwargs)
        self.folder = Path(folder)

    async def hang(self, stage):
        (self.folder / f"{stage}-{os.getpid()}").touch()
        await self.exec("sleep 1000")

    async def start(self, force_build):
        await super().start(force_build)
        if self.environment_dir.parent.name == "count-words":
            await self.hang("set-up")

    async def upload_dir(self, source_dir, target_dir):
        await super().upload_dir(source_dir, target_dir)
        if target_dir == "/tests" and self.environment_dir.parent.name == "sort-lines":
            await self.hang("grade")


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
SOLUTIONS = {
    "words.txt": "wc -w < /app/words.txt > /app/answer.txt",
    "greet.sh": "echo 'echo Hello, $1' > /app/greet.sh",
    "names.txt": "sort -u /app/names.txt > /app/sorted.txt",
}


class Script:
    """What the model says to terminus-2. Of the rollouts of one task, every second one does it wrong."""

    def __init__(self) -> None:
        self._begun = Counter[str]()

    def __call__(self, prompt: str) -> str:
        if '"analysis": "first"' in prompt:
            return DONE
        name, keys = next((name, keys) for name, keys in SOLUTIONS.items() if name in prompt)
        self._begun[name] += 1
        told = keys if self._begun[name] % 2 else "touch /app/wrong"
        said = '{"analysis": "first", "plan": "do it", "commands": [{"keystrokes": "%s\\n", "duration": 0.1}]}'
        return said % told


def yes(prompt: str) -> str:
    return "yes"


@asynccontextmanager
async def scene(
    write_config: WriteConfig,
    model: Path,
    agent: str,
    script: Callable[[str], str] = yes,
    *,
    servers: list[str] | None = None,
    **more: Any,
) -> AsyncIterator[Path]:
    """A config, while a scripted engine runs that it names. With `servers` its trials are on those agent servers. Its
    groups are of two rollouts each, one per task."""
    engine = text_engine(script, load_tokenizer(str(model)))
    async with serve_scripted(engine, ModelCard(str(model), CONTEXT)) as url:
        runner: dict[str, Any] = {"kind": "harbor", "python": str(PYTHON), "agent": agent, **more.pop("runner", {})}
        if agent == "terminus-2":
            info = {"max_input_tokens": CONTEXT, "max_output_tokens": 1024}
            runner["agent_args"] = {"record_terminal_session": False, "model_info": info, "enable_summarize": False}
        if servers:
            runner = {"kind": "server", "urls": servers, "key_env": "AGENT_SERVER_KEY", "runner": runner}
            runner["wait_seconds"] = 5.0
        settings: dict[str, Any] = {
            "model__path": str(model),
            "data": {"kind": "harbor", "path": str(TASKS), "shuffle": False},
            "agent": {"kind": "remote", "runner": runner, **more.pop("program", {})},
            "judgers": {},
            "produce": {
                "kind": "async",
                "max_staleness": 0,
                "max_attempts": more.pop("attempts", 1),
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
        (file.parent / "agents.py").write_text(AGENTS)
        yield file


@asynccontextmanager
async def training(file: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """`loopwright train`, which is killed if it does not end by itself."""
    process = start(file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def trained(file: Path) -> list[Rollout]:
    """Train with `loopwright train`, and return all attempts at rollouts."""
    async with training(file) as process:
        assert await ended(process) == 0, (file.parent / "output.txt").read_text()
    folder = RunFolder(file.parent / "run")
    assert audit(folder.rollouts).is_clean
    return attempts_of(folder)


def attempts_of(folder: RunFolder) -> list[Rollout]:
    return [attempt.rollout for attempt in StoredRun(folder.rollouts).attempts()]


async def until(reached: Callable[[], bool], file: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until it is so, while a run goes on."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(reached):
            assert process.poll() is None, (file.parent / "output.txt").read_text()
            await asyncio.sleep(0.1)


def left(owner: Path) -> list[object]:
    """Processes, folders and mounts of a run, or of an agent server with that store, which are still there."""
    run = Owner.here(owner).run
    workspace = Path("/tmp") if "TMPDIR" not in os.environ else Path(os.environ["TMPDIR"])
    workspace /= f"loopwright-{os.getuid()}"
    folders = [path for path in workspace.iterdir() if path.name.startswith(run)] if workspace.is_dir() else []
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if run in line]
    return [*processes(owner), *folders, *mounts]


def processes(owner: Path) -> list[object]:
    run = Owner.here(owner).run
    return [one for one in ProcessTable(VARIABLE).marked() if one.mark.startswith(run)]
