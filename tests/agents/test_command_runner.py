"""One program from its set-up to its reward, with and without a sandbox. Nothing that it started is left."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.runners.command import CommandRunner, PreparedCommand
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.marks import VARIABLE
from loopwright.config import CommandRunnerConfig, ExitCodeReward, FileReward, ProgramReward, VerifierReward
from loopwright.errors import ConfigError, ProgramError, ProgramLimitError, SetupError
from loopwright.ports import Endpoint
from loopwright.serve.marked_processes import Process, ProcessTable
from loopwright.types import (
    Failed,
    FailureCause,
    Isolation,
    ProgramInput,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Scored,
    Split,
    Task,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

ENDPOINT = Endpoint("http://127.0.0.1:1/sessions/s/v1", "lwk_the-key", "http://127.0.0.1:1/sessions/s", "tiny")
TASK = Task.ask("t1", "What is 1+1?", truth=2, repo="r1")
REQUEST = RolloutRequest(Split.TRAIN, RolloutKey("train", 0, 0), TASK, Sampling(), 60.0)
PYTHON = Path(sys.executable).resolve()
no_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(params=[Isolation.NONE, pytest.param(Isolation.BWRAP, marks=no_bwrap)])
def isolate(request: pytest.FixtureRequest) -> Isolation:
    return Isolation(request.param)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.agents.runners.watch.LOOK_SECONDS", 0.1)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ProgramHost]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8", "PYTHONPATH": "ours"}
    base, run = tmp_path / "config", tmp_path / "run"
    base.mkdir()
    run.mkdir()
    made = ProgramHost.here(base, run, environment, {"NAMED": "by the config"})
    yield made
    left = [process for process in ProcessTable(VARIABLE).marked() if process.mark.startswith(made.owner.name)]
    assert left == []
    assert list(made.workspace.glob(f"{made.owner.name}*")) == []


@asynccontextmanager
async def prepared(
    host: ProgramHost, *command: str, reward: ProgramReward | None = None, task: Task = TASK, **settings: Any
) -> AsyncIterator[PreparedCommand]:
    config = CommandRunnerConfig(command=command, **settings)
    request = RolloutRequest(Split.TRAIN, REQUEST.key, task, Sampling(), 60.0)
    async with CommandRunner(config, reward, host) as runner, runner.prepared(request) as place:
        yield place


async def ran(host: ProgramHost, script: str, **settings: Any) -> tuple[str, Scored | Failed | None]:
    """The output of a shell script, and its reward."""
    async with prepared(host, "sh", "-c", script, **settings) as place:
        await place.run(ENDPOINT)
        reward = await place.reward()
        return place.output.text, reward


async def test_a_program_sees_its_task_its_model_and_few_variables(host: ProgramHost, isolate: Isolation) -> None:
    script = 'cat; echo; cat TASK.md; echo; pwd; env; echo "$0 $1"'
    async with prepared(
        host,
        "sh",
        "-c",
        script,
        "{task.metadata.repo}",
        "{base_url}|{anthropic_url}|{model}|{config}",
        stdin=ProgramInput.INSTRUCTION,
        instruction_file="TASK.md",
        env={"OWN": "for {task.id}"},
        pass_env=("NAMED",),
        isolate=isolate,
    ) as place:
        await place.run(ENDPOINT)
        text, work = place.output.text, str(place.folders.work)
        home = str(place.folders.home)
    lines = text.splitlines()
    assert lines[:3] == ["What is 1+1?", "What is 1+1?", work]
    assert lines[-1] == f"r1 {ENDPOINT.base_url}|{ENDPOINT.anthropic_url}|tiny|{host.base}"
    variables = dict(line.split("=", 1) for line in lines[3:-1])
    told = {"OPENAI_BASE_URL": ENDPOINT.base_url, "ANTHROPIC_BASE_URL": ENDPOINT.anthropic_url}
    told |= {"OPENAI_API_KEY": "lwk_the-key", "ANTHROPIC_API_KEY": "lwk_the-key", "OPENAI_MODEL": "tiny"}
    told |= {"OWN": "for t1", "NAMED": "by the config", "HOME": home, "LANG": "C.UTF-8"}
    assert told.items() <= variables.items()
    assert variables["LOOPWRIGHT_TRIAL"].startswith(host.owner.name)
    assert "PYTHONPATH" not in variables
    assert variables["PATH"].split(":")[0] == os.path.dirname(sys.executable)


async def test_each_program_has_a_copy_of_the_folder(host: ProgramHost, isolate: Isolation) -> None:
    (host.base / "repos" / "r1").mkdir(parents=True)
    (host.base / "repos" / "r1" / "file").write_text("theirs")
    settings: dict[str, Any] = {"folder": "repos/{task.metadata.repo}", "isolate": isolate}
    for _ in range(2):
        text, _ = await ran(host, "cat file; echo mine > file; echo x > ~/f; echo x > $TMPDIR/f", **settings)
        assert text == "theirs"
    assert (host.base / "repos" / "r1" / "file").read_text() == "theirs"


async def test_a_folder_that_is_missing_is_a_failed_set_up(host: ProgramHost) -> None:
    with pytest.raises(SetupError, match=r"t1.*nowhere"):
        await ran(host, "true", folder="nowhere/{task.id}")


async def test_a_task_chooses_among_folders_and_does_not_climb_out_of_them(host: ProgramHost) -> None:
    (host.base / "repos").mkdir()
    for sly in ("..", "../../run", "a\0b"):
        with pytest.raises(SetupError, match=r"leads out|null byte"):
            await ran(host, "ls", folder="repos/{task.metadata.repo}", task=Task.ask("t1", "?", repo=sly))
    assert (await ran(host, "ls", folder="{config}/../config"))[0] == "repos\n"


async def test_the_run_and_its_keys_are_not_copied(host: ProgramHost) -> None:
    inner = ProgramHost.here(host.base, host.base / "runs" / "one", host.environment, {})
    inner.run_folder.mkdir(parents=True)
    (inner.run_folder / "gateway.key").write_text("secret")
    assert (await ran(inner, "ls runs", folder="."))[0] == ""


async def test_the_instruction_is_not_written_through_a_link(host: ProgramHost) -> None:
    (host.base / "repo").mkdir()
    (host.base / "kept").write_text("kept")
    (host.base / "repo" / "TASK.md").symlink_to(host.base / "kept")
    (host.base / "repo" / "out").symlink_to(host.base)
    assert (await ran(host, "cat TASK.md", folder="repo", instruction_file="TASK.md"))[0] == "What is 1+1?"
    with pytest.raises(SetupError, match="leads out"):
        await ran(host, "true", folder="repo", instruction_file="out/kept")
    assert (host.base / "kept").read_text() == "kept"


async def test_half_a_surrogate_pair_in_a_task_is_replaced(host: ProgramHost) -> None:
    task = Task.ask("t", "a\ud800", truth="\ud800", big=2**70)
    how = verifier("grep -q ud800")
    settings: dict[str, Any] = {"stdin": ProgramInput.INSTRUCTION, "instruction_file": "T", "task": task}
    assert await ran(host, "cat; cat T", reward=how, **settings) == ("a\ufffda\ufffd", Scored(1.0))


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05, 0.1])
async def test_a_cancelled_set_up_leaves_no_folder(host: ProgramHost, seconds: float) -> None:
    for number in range(1000):
        path = host.base / "repo" / str(number % 50) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    running = asyncio.create_task(ran(host, "true", folder="repo"))
    await asyncio.sleep(seconds)
    running.cancel()
    # On a fast machine it may have ended before.
    with suppress(asyncio.CancelledError):
        await running
    assert list(host.workspace.glob(f"{host.owner.name}*")) == []
    await asyncio.sleep(0.2)


async def test_a_trial_that_is_cancelled_twice_leaves_no_folder(host: ProgramHost) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(prepared(host, "true"))
        leaving = asyncio.create_task(stack.aclose())
        asyncio.get_running_loop().set_default_executor(busy := ThreadPoolExecutor(1))
        busy.submit(time.sleep, 0.5)
        for _ in range(2):
            await asyncio.sleep(0.1)
            leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    assert list(host.workspace.glob(f"{host.owner.name}*")) == []


async def test_a_program_that_does_not_exist_is_a_failed_set_up(host: ProgramHost) -> None:
    with pytest.raises(SetupError, match="no-such-program"):
        async with prepared(host, "no-such-program") as place:
            await place.run(ENDPOINT)


@pytest.mark.parametrize(("script", "words"), [("echo why; exit 3", "exit code 3.*why"), ("kill -9 $$", "9|137")])
async def test_a_program_that_fails_says_how(host: ProgramHost, isolate: Isolation, script: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        await ran(host, script, isolate=isolate)


async def test_exit_codes_may_be_no_failure(host: ProgramHost) -> None:
    assert await ran(host, "echo done; exit 3", exit_codes=(0, 3)) == ("done\n", None)


RUNAWAYS = {
    "children": "sleep 300 & sleep 300 & echo started",
    "left its group": "setsid sleep 300 >/dev/null 2>&1 & echo started; sleep 0.3",
    "left its mark": "env -i sleep 300 & echo started; sleep 0.8",
    "ignores the end": "trap '' TERM INT HUP; (trap '' TERM; sleep 300) & echo started",
}


@pytest.mark.parametrize("script", RUNAWAYS.values(), ids=RUNAWAYS)
async def test_what_a_program_started_ends_with_it(host: ProgramHost, isolate: Isolation, script: str) -> None:
    text, _ = await ran(host, script, isolate=isolate)
    assert text == "started\n"


@pytest.mark.parametrize("script", ["sleep 300", "trap '' TERM; sleep 300 & setsid sleep 300 & wait; sleep 300"])
async def test_cancelling_ends_a_program_that_hangs(host: ProgramHost, isolate: Isolation, script: str) -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await ran(host, script, isolate=isolate)
    assert time.monotonic() - begun < 30


async def test_a_long_output_is_cut_in_the_middle(host: ProgramHost, isolate: Isolation) -> None:
    script = "echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo last"
    text, _ = await ran(host, script, isolate=isolate, output_kb=4)
    assert text.startswith("first\n")
    assert text.endswith("x\nlast\n")
    assert "bytes left out" in text
    assert len(text) < 5000


async def test_an_instruction_that_nobody_reads_is_no_failure(host: ProgramHost) -> None:
    task = Task.ask("t", "x" * 1_000_000)
    async with prepared(host, "true", task=task, stdin=ProgramInput.INSTRUCTION) as place:
        await place.run(ENDPOINT)


LIMITS: Mapping[str, tuple[str, dict[str, int], str]] = {
    "disk, by many files": (
        "for i in 1 2 3 4; do head -c 900000 /dev/zero > f$i; done; sleep 60",
        {"disk_mb": 1},
        "MB of disk, and 1 are allowed",
    ),
    "disk, by its home": (
        "for i in 1 2 3 4; do head -c 900000 /dev/zero > ~/f$i; done; sleep 60",
        {"disk_mb": 1},
        "MB of disk, and 1 are allowed",
    ),
    "processes": ("for i in $(seq 20); do sleep 60 & done; wait", {"processes": 10}, "processes, and 10 are allowed"),
    "memory": (
        "for i in 1 2 3 4; do head -c 30000000 /dev/zero | tail -n 1 | sleep 60 & done; wait",
        {"memory_mb": 60},
        "MB of memory, and 60 are allowed",
    ),
}


@pytest.mark.parametrize(("script", "limits", "words"), LIMITS.values(), ids=LIMITS)
async def test_a_program_that_uses_too_much_is_ended(
    host: ProgramHost, isolate: Isolation, script: str, limits: dict[str, int], words: str
) -> None:
    with pytest.raises(ProgramLimitError, match=words):
        async with asyncio.timeout(30):
            await ran(host, script, isolate=isolate, **limits)


async def test_a_file_cannot_grow_beyond_the_limit(host: ProgramHost, isolate: Isolation) -> None:
    with pytest.raises(ProgramError):
        await ran(host, "head -c 5000000 /dev/zero > big", isolate=isolate, disk_mb=1)


async def test_a_sandbox_is_read_only_and_hides_other_processes_and_homes(host: ProgramHost) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    (host.run_folder / "door.key").write_text("secret")
    script = f"""
        touch {host.base}/x 2>/dev/null && echo WROTE; touch /usr/x 2>/dev/null && echo WROTE
        ls {host.base} > /dev/null && echo config; ls {Path.home()}/.bashrc 2>/dev/null && echo READ
        cat {host.run_folder}/door.key 2>/dev/null && echo READ
        kill -0 {os.getpid()} 2>/dev/null && echo SAW
        ls / > /dev/null && echo system; touch inside && echo wrote
    """
    text, _ = await ran(host, script, isolate=Isolation.BWRAP)
    assert not {"WROTE", "READ", "SAW", "secret"} & set(text.split())
    assert {"config", "system", "wrote"} <= set(text.split())


@no_bwrap
async def test_a_sandbox_shows_what_belongs_to_a_program_that_is_installed_in_the_home(
    host: ProgramHost, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    in_home = replace(host, environment={**host.environment, "HOME": str(home)})
    for name in ("venv/lib", "npm/node_modules/agent-linux", "verifying", "data", "private"):
        (home / name).mkdir(parents=True)
        (home / name / "part").write_text(f"{name}\n")
    (home / "venv" / "pyvenv.cfg").touch()
    agent = _script(home / "venv" / "bin" / "agent", f"cat {home}/venv/lib/part {home}/data/part {home}/private/part")
    packed = _script(home / "npm" / "node_modules" / "agent" / "bin" / "agent.js", f"cat {home}/npm/*/agent-linux/part")
    linked = home / "npm" / "node_modules" / ".bin" / "agent"
    linked.parent.mkdir()
    linked.symlink_to(packed)
    settings: dict[str, Any] = {"isolate": Isolation.BWRAP, "exit_codes": (0, 1)}
    async with prepared(in_home, str(agent), readable=(str(home / "data"),), **settings) as place:
        await place.run(ENDPOINT)
        assert place.output.text.splitlines()[:2] == ["venv/lib", "data"]
        assert "private\n" not in place.output.text
    verifier = _script(home / "verifying" / "check", f"cat {home}/verifying/part")
    async with prepared(in_home, str(linked), reward=VerifierReward(command=(str(verifier),)), **settings) as place:
        await place.run(ENDPOINT)
        assert place.output.text == "npm/node_modules/agent-linux\n"
        assert await place.reward() == Scored(1.0)


@no_bwrap
async def test_a_sandbox_never_shows_the_whole_home(host: ProgramHost, tmp_path: Path) -> None:
    home = tmp_path / "home"
    agent = _script(home / "agent", f"cat {home}/private")
    (home / "private").write_text("secret")
    in_home = replace(host, environment={**host.environment, "HOME": str(home)})
    async with prepared(in_home, str(agent), isolate=Isolation.BWRAP, exit_codes=(1,)) as place:
        await place.run(ENDPOINT)
        assert "No such file" in place.output.text
    sandboxed = CommandRunnerConfig(command=("sh",), isolate=Isolation.BWRAP)
    for base in (home, tmp_path):
        with pytest.raises(ConfigError, match="holds your home"):
            CommandRunner(sandboxed, None, replace(in_home, base=base))
        CommandRunner(CommandRunnerConfig(command=("sh",)), None, replace(in_home, base=base))


def _script(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@no_bwrap
@pytest.mark.parametrize("home", ["/", "/nonexistent"])
async def test_a_home_that_cannot_be_hidden_does_no_harm(host: ProgramHost, home: str) -> None:
    strange = replace(host, environment={**host.environment, "HOME": home})
    assert (await ran(strange, "echo fine", isolate=Isolation.BWRAP))[0] == "fine\n"


@no_bwrap
async def test_a_sandbox_hides_services_and_other_trials(host: ProgramHost) -> None:
    workspace = Path("/var/tmp") / f"loopwright-test-{os.getpid()}"
    elsewhere = replace(host, workspace=workspace)
    try:
        async with prepared(elsewhere, "true") as other:
            (other.folders.work / "key").write_text("secret")
            script = f"cat {other.folders.work}/key; ls {workspace} | wc -l; ls /run"
            text, _ = await ran(elsewhere, script, isolate=Isolation.BWRAP)
    finally:
        shutil.rmtree(workspace)
    assert "secret" not in text
    lines = [line for line in text.splitlines() if "No such file" not in line]
    assert lines[0] == "1"
    assert set(lines[1:]) <= {"systemd", "current-system", "opengl-driver"}


@no_bwrap
async def test_shared_memory_counts_as_disk_and_a_hidden_home_is_empty(host: ProgramHost) -> None:
    script = f"touch {Path.home()}/x || echo refused; for i in 1 2 3; do head -c 900000 /dev/zero > /dev/shm/$i; done"
    with pytest.raises(ProgramLimitError, match=r"(?s)MB of disk.*refused"):
        async with asyncio.timeout(30):
            await ran(host, f"{script}; sleep 60", isolate=Isolation.BWRAP, disk_mb=1)


@no_bwrap
async def test_a_virtual_environment_in_a_folder_that_a_sandbox_hides_can_be_used(host: ProgramHost) -> None:
    """Its Python is a link in a folder that is shown before."""
    environment = host.base / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n")
    (environment / "bin" / "python3").symlink_to(PYTHON)
    (environment / "bin" / "python").symlink_to("python3")
    program = str(environment / "bin" / "python")
    async with prepared(host, program, "-c", "print('fine')", isolate=Isolation.BWRAP) as place:
        await place.run(ENDPOINT)
        assert place.output.text == "fine\n"


async def test_what_processes_or_names_share_counts_once(host: ProgramHost, isolate: Isolation) -> None:
    script = """
import os, time
os.link("a", "b") if open("a", "wb").write(bytes(900_000)) else None
held = bytearray(os.urandom(1 << 20)) * 60
for _ in range(5):
    if not os.fork():
        time.sleep(1)
        os._exit(0)
time.sleep(1)
print("fine")
"""
    async with prepared(host, "python", "-c", script, memory_mb=250, disk_mb=1, isolate=isolate) as place:
        await place.run(ENDPOINT)
        assert place.output.text == "fine\n"


async def test_a_look_that_fails_is_not_the_last(host: ProgramHost, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, marked = iter([True, True]), ProcessTable.marked

    def fails_twice(table: ProcessTable) -> tuple[Process, ...]:
        if next(looks, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return marked(table)

    async with (
        asyncio.timeout(30),
        prepared(host, "sh", "-c", "for i in $(seq 9); do sleep 60 & done; wait", processes=3) as place,
    ):
        monkeypatch.setattr(ProcessTable, "marked", fails_twice)
        with pytest.raises(ProgramLimitError, match="processes, and 3"):
            await place.run(ENDPOINT)


async def test_without_a_free_file_descriptor_a_program_still_ends(
    host: ProgramHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    assert (await ran(host, "echo fine"))[0] == "fine\n"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await ran(host, "sleep 60")


async def test_a_full_disk_is_a_failed_set_up_and_leaves_nothing_open(
    host: ProgramHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with prepared(host, "true") as place:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(SetupError, match="No space left"):
            await place.run(ENDPOINT)
        monkeypatch.undo()
        await asyncio.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_nobody_waits_for_a_program_that_cannot_be_killed(
    host: ProgramHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("loopwright.agents.runners.process.KILL_ROUNDS", 2)
    with monkeypatch.context() as patched:
        for name in ("_signal_group", "kill_all", "kill_at_once"):
            patched.setattr(f"loopwright.agents.runners.process.{name}", lambda *_: None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ran(host, "exec sleep 15")
    assert "cannot be ended" in caplog.text
    left = [process.pid for process in ProcessTable(VARIABLE).marked() if process.mark.startswith(host.owner.name)]
    assert left
    for pid in left:
        os.kill(pid, 9)
    await asyncio.sleep(0.1)


# Rewards.


async def test_a_reward_from_a_file(host: ProgramHost, isolate: Isolation) -> None:
    reward = FileReward(path="out/reward.json")
    script = "mkdir out; echo '{\"reward\": 0.5}' > out/reward.json"
    assert (await ran(host, script, reward=reward, isolate=isolate))[1] == Scored(0.5)
    for script in ("true", "mkdir out; echo nan > out/reward.json", "mkdir out; ln -s /etc/hostname out/reward.json"):
        _, failed = await ran(host, script, reward=reward, isolate=isolate)
        assert isinstance(failed, Failed)
        assert (failed.cause, failed.error) == (FailureCause.VERIFIER, "VerifierError")


async def test_a_reward_from_the_exit_code(host: ProgramHost) -> None:
    assert (await ran(host, "exit 0", reward=ExitCodeReward()))[1] == Scored(1.0)
    assert (await ran(host, "exit 10", reward=ExitCodeReward()))[1] == Scored(0.0)
    assert (await ran(host, "exit 7", reward=ExitCodeReward(scores={7: 0.7})))[1] == Scored(0.7)
    for script in ("exit 1", "exit 2", "kill -9 $$"):
        _, failed = await ran(host, script, reward=ExitCodeReward())
        assert isinstance(failed, Failed), "a crash is no reward of 0"


def verifier(script: str, **settings: Any) -> VerifierReward:
    scores = {0: 1.0, 1: 0.0}
    return VerifierReward(command=("sh", "-c", script, "{task.id}"), scores=scores, **settings)


async def test_a_verifier_that_crashes_as_python_does_is_no_verdict(host: ProgramHost) -> None:
    check = VerifierReward(command=("python", "-c", "raise ValueError"))
    _, failed = await ran(host, "true", reward=check)
    assert isinstance(failed, Failed)
    assert "exit code 1" in failed.detail


async def test_a_verifier_runs_in_the_same_folder_with_the_task(host: ProgramHost, isolate: Isolation) -> None:
    check = verifier('grep -q \'"truth":2\' && grep -q 42 answer && test "$0" = t1')
    assert (await ran(host, "echo 42 > answer", reward=check, isolate=isolate))[1] == Scored(1.0)
    assert (await ran(host, "echo 41 > answer", reward=check, isolate=isolate))[1] == Scored(0.0)


async def test_a_verifier_sees_no_key_and_its_output_is_kept(host: ProgramHost) -> None:
    async with prepared(host, "true", reward=verifier("env; echo $OPENAI_API_KEY")) as place:
        await place.run(ENDPOINT)
        await place.reward()
        assert "PATH=" in place.output.verifier
        assert "lwk_" not in place.output.verifier


async def test_what_the_agent_wrote_is_no_verdict(host: ProgramHost) -> None:
    cheat = "echo 1 > reward.txt"
    _, failed = await ran(host, cheat, reward=verifier("true", path="reward.txt"))
    assert isinstance(failed, Failed)
    assert "no reward file" in failed.detail
    assert (await ran(host, cheat, reward=verifier("echo 0.25 > reward.txt", path="reward.txt")))[1] == Scored(0.25)


async def test_a_sandbox_that_fails_is_no_reward_of_0(host: ProgramHost, tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    check = tmp_path / "home" / "bin" / "check"
    check.parent.mkdir(parents=True)
    check.write_text("#!/bin/sh\nexit 0\n")
    check.chmod(0o755)
    homed = replace(host, environment={**host.environment, "HOME": str(tmp_path / "home")})
    named, from_task = VerifierReward(command=(str(check),)), VerifierReward(command=("{task.metadata.check}",))
    task = Task.ask("t1", "?", check=str(check))
    settings: dict[str, Any] = {"task": task, "isolate": Isolation.BWRAP}
    assert (await ran(homed, "true", reward=named, **settings))[1] == Scored(1.0), "its folder can be read"
    _, failed = await ran(homed, "true", reward=from_task, **settings)
    assert isinstance(failed, Failed)
    assert "sandbox" in failed.detail
    assert (await ran(homed, "true", reward=verifier("exit 1"), **settings))[1] == Scored(0.0)


async def test_what_the_agent_left_in_its_home_does_not_run_in_the_verifier(
    host: ProgramHost, isolate: Isolation
) -> None:
    cheat = "for place in ~ $TMPDIR; do touch $place/.trap; done"
    check = verifier("test ! -e ~/.trap && test ! -e $TMPDIR/.trap")
    assert (await ran(host, cheat, reward=check, isolate=isolate))[1] == Scored(1.0)


@pytest.mark.parametrize("cheat", ["ln -s {base} out", "touch out", "mkdir -p out/reward"])
async def test_the_way_to_a_verdict_may_be_blocked_by_the_agent(host: ProgramHost, cheat: str) -> None:
    (host.base / "reward").write_text("1")
    _, failed = await ran(host, cheat.format(base=host.base), reward=verifier("true", path="out/reward"))
    assert isinstance(failed, Failed)
    assert failed.cause is FailureCause.VERIFIER
    assert (host.base / "reward").exists()


BROKEN_VERIFIERS: Mapping[str, tuple[VerifierReward, str]] = {
    "crashes": (verifier("echo oops; exit 2"), "exit code 2.*oops"),
    "is killed": (verifier("kill -9 $$"), "signal 9|137"),
    "hangs": (verifier("sleep 300", timeout_seconds=0.3), "longer than 0.3 s"),
    "crashes with a file": (verifier("echo 1 > r; exit 1", path="r"), "exit code 1"),
    "writes nonsense": (verifier("echo much > r", path="r"), "no number"),
    "leaves children": (verifier("setsid sleep 300 & exit 4"), "exit code 4"),
}


@pytest.mark.parametrize(("check", "words"), BROKEN_VERIFIERS.values(), ids=BROKEN_VERIFIERS)
async def test_a_verifier_that_fails_is_a_failure(
    host: ProgramHost, isolate: Isolation, check: VerifierReward, words: str
) -> None:
    _, failed = await ran(host, "true", reward=check, isolate=isolate)
    assert isinstance(failed, Failed)
    assert failed.cause is FailureCause.VERIFIER
    assert re.search(words, failed.detail, re.DOTALL)


async def test_a_verifier_is_asked_again(host: ProgramHost) -> None:
    flaky = verifier("test -e tried || { touch tried; exit 9; }", attempts=2)
    assert (await ran(host, "true", reward=flaky))[1] == Scored(1.0)
    assert isinstance((await ran(host, "true", reward=flaky.model_copy(update={"attempts": 1})))[1], Failed)
