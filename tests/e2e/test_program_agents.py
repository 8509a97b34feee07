"""Runs whose agents are programs: they train, survive programs that misbehave, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_kill import finish, start, wait_for_step

from loopwright.agents.runners.marks import VARIABLE, Owner
from loopwright.core.chains import turns_of
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.marked_processes import ProcessTable
from loopwright.types import Failed, FailureCause, Isolation, Rollout

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")]

WriteConfig = Callable[..., Path]

AGENT = '''
import json, os, sys, time, urllib.request

def ask(messages):
    """As an SDK would, without the second that importing one takes."""
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=100) as reply:
        return json.load(reply)["choices"][0]["message"]

question = {"role": "user", "content": sys.stdin.read()}
said = ask([question])
said = ask([question, said, {"role": "user", "content": "Go on."}])
reward = sum(letter in "aeiou" for letter in said["content"]) / 4
'''
WELL = AGENT + 'open("reward.json", "w").write(json.dumps({"reward": reward}))\n'

FAULTS = {
    "killed": "os.kill(os.getpid(), 9)",
    "hangs": "time.sleep(1000)",
    "leaves children": "os.system('setsid sleep 1000 & sleep 1000 & echo started'); sys.exit(7)",
    "fills its disk": "[open(f'f{n}', 'wb').write(bytes(900_000)) for n in range(40)]; time.sleep(1000)",
    "verifier crashes": "open('crash', 'w')",
    "reward malformed": "open('reward', 'w').write('good')",
    "reward missing": "open('reward', 'w').close(); os.unlink('reward'); open('none', 'w')",
    "reward not a number": "open('reward', 'w').write('NaN')",
    "never asks": None,
}
"""Half of all programs misbehave, each in one of these ways."""

CHAOTIC = f"""
import os
number = int(os.environ["LOOPWRIGHT_TRIAL"][-6:], 16)
faults = {list(FAULTS.values())!r}
fault = faults[number // 2 % len(faults)] if number % 2 else ""
if fault is None:
    raise SystemExit(0)
{AGENT}
open("reward", "w").write(str(reward))
exec(fault)
"""

CHECK = """
import os, sys
if os.path.exists("crash"): os.abort()
if not os.path.exists("none"): os.replace("reward", "verdict")
"""


def program(folder: Path, source: str, isolate: Isolation, **settings: Any) -> dict[str, Any]:
    (folder / "agent.py").write_text(source)
    (folder / "check.py").write_text(CHECK)
    command = ["python", "{config}/agent.py"]
    runner = {"kind": "command", "command": command, "stdin": "instruction", "isolate": isolate.value, "disk_mb": 20}
    return {"kind": "remote", "runner": runner, "reward": {"kind": "file", "path": "reward.json"}, **settings}


@pytest.fixture(params=list(Isolation))
def isolate(request: pytest.FixtureRequest) -> Isolation:
    if request.param is Isolation.BWRAP and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return Isolation(request.param)


def trained(folder: Path) -> list[Rollout]:
    stored = StoredRun(RunFolder(folder).rollouts)
    return [rollout for step in stored.steps() for rollout in stored.rollouts(step)]


def nothing_left(folder: Path) -> None:
    run = Owner.here(folder).run
    assert [process for process in ProcessTable(VARIABLE).marked() if process.mark.startswith(run)] == []


def test_a_run_trains_the_model_behind_a_program(write_config: WriteConfig, tmp_path: Path, isolate: Isolation) -> None:
    file = write_config(agent=program(tmp_path, WELL, isolate), eval=None, trainer__steps=2, trainer__groups_per_step=2)
    finish(start(file))
    rollouts = trained(tmp_path / "run")
    assert len(rollouts) == 2 * 2 * 4
    for rollout in rollouts:
        assert rollout.episode is not None
        (chain,) = rollout.episode.chains
        assert len(turns_of(chain)) == 2
        answer = rollout.episode.answer
        assert rollout.score == sum(letter in "aeiou" for letter in answer) / 4
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean
    nothing_left(tmp_path / "run")


def test_programs_that_misbehave_are_replaced_and_never_worth_0(
    write_config: WriteConfig, tmp_path: Path, isolate: Isolation
) -> None:
    agent = program(tmp_path, CHAOTIC, isolate, max_seconds=2.0)
    agent["reward"] = {"kind": "verifier", "command": ["python", "{config}/check.py"], "path": "verdict", "attempts": 1}
    file = write_config(agent=agent, eval=None, produce__max_attempts=20, trainer__steps=2, trainer__groups_per_step=3)
    finish(start(file))
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean
    nothing_left(tmp_path / "run")
    attempts = [attempt.rollout for attempt in StoredRun(RunFolder(tmp_path / "run").rollouts).attempts()]
    failures = [rollout.reward for rollout in attempts if isinstance(rollout.reward, Failed)]
    assert {failure.cause for failure in failures} == {FailureCause.AGENT, FailureCause.VERIFIER}
    assert len(trained(tmp_path / "run")) >= 2 * 3 * 4


def test_a_killed_run_leaves_no_program_behind_when_it_is_resumed(
    write_config: WriteConfig, tmp_path: Path, isolate: Isolation
) -> None:
    slow = WELL.replace("question =", "os.system('setsid sleep 1000 &')\nquestion =") + "time.sleep(0.3)\n"
    file = write_config(agent=program(tmp_path, slow, isolate), eval=None, trainer__steps=3, trainer__groups_per_step=2)
    process = start(file)
    wait_for_step(tmp_path / "run", 1, process)
    owner = Owner.here(tmp_path / "run").run
    deadline = time.monotonic() + 60
    while not [one for one in ProcessTable(VARIABLE).marked() if one.mark.startswith(owner)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finish(start(file))
    nothing_left(tmp_path / "run")
    assert audit(RunFolder(tmp_path / "run").rollouts).is_clean
    assert len(trained(tmp_path / "run")) == 3 * 2 * 4
