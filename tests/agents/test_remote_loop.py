"""Programs behind a real gateway: their tokens, their time and how their failures are told."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.remote import RemoteLoop, WeightedRunner
from loopwright.agents.runners.command import CommandRunner
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.worker import AgentSetup, LocalWorker
from loopwright.config import CommandRunnerConfig, ExitCodeReward, FileReward, ProgramReward, VerifierReward
from loopwright.errors import EngineError
from loopwright.gateway.offer import Served
from loopwright.gateway.server import open_gateway
from loopwright.gateway.store import MemoryStore
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.testing import ScriptedEngine
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import (
    Failed,
    FailureCause,
    OnAgentError,
    ProgramInput,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Scored,
    Split,
    StopReason,
    Task,
    Unscored,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

ASK = '''
import json, os, sys, time, urllib.request

def ask(messages):
    """As an SDK would, without the second that importing one takes."""
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "temperature": 0.1}).encode()
    key = "Bearer " + os.environ["OPENAI_API_KEY"]
    headers = {"authorization": key, "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]

question = {"role": "user", "content": sys.stdin.read()}
'''
TASK = Task.ask("t1", "What is 1+1?", truth=2)


def _ids(text: str) -> Sequence[int]:
    tokenizer = tiny_tokenizer()
    return (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)


class Held:
    """A clock of held seconds that a test moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def worker(
    base: Path,
    *scripts: str,
    engine: ScriptedEngine | None = None,
    held: Held | None = None,
    on_agent_error: OnAgentError = "fail",
    reward: ProgramReward | None = None,
    max_seconds: float | None = None,
    **settings: Any,
) -> AsyncIterator[LocalWorker]:
    """A worker for one task set whose agent is one of these Python programs."""
    host = ProgramHost.here(base, base / "run", {"PATH": "/usr/bin:/bin"}, {})
    runners = []
    for number, script in enumerate(scripts):
        (base / f"agent{number}.py").write_text(ASK + script)
        command = ("python", f"{{config}}/agent{number}.py")
        config = CommandRunnerConfig(
            command=command, name=f"agent{number}", stdin=ProgramInput.INSTRUCTION, weight=2.0**number, **settings
        )
        runners.append(WeightedRunner(CommandRunner(config, reward, host), config.weight))
    loop = RemoteLoop(runners, max_seconds=max_seconds, grades_failures=on_agent_error == "grade")
    renderer = ChatTemplateRenderer(tiny_tokenizer())
    served = Served(engine or ScriptedEngine(lambda request: "two", encode=_ids), renderer, 4096, "tiny")
    async with loop, open_gateway(served, MemoryStore(), key="a-long-key", held=held or Held()) as gateway:
        setup = AgentSetup(loop, served=True, keeps_time=True, on_agent_error=on_agent_error)
        policies = gateway.policies()
        yield LocalWorker({(Split.TRAIN, "train"): setup}, policies, policies)


def request(seconds: float = 60.0, seed: int = 1) -> RolloutRequest:
    return RolloutRequest(Split.TRAIN, RolloutKey("train", 0, 0), TASK, Sampling(seed=seed), seconds)


async def rollout(base: Path, script: str, seconds: float = 60.0, **settings: Any) -> Rollout:
    async with worker(base, script, **settings) as made, asyncio.timeout(50):
        return await made.run(request(seconds))


def failure(made: Rollout) -> tuple[FailureCause, str, str]:
    assert isinstance(made.reward, Failed)
    return made.reward.cause, made.reward.error, made.reward.detail


async def test_a_programs_turns_are_one_exact_chain(tmp_path: Path) -> None:
    script = 'said = ask([question]); print("heard", said["content"]); ask([question, said, question])'
    made = await rollout(tmp_path, script)
    assert isinstance(made.reward, Unscored)
    assert made.episode is not None
    (chain,) = made.episode.chains
    assert [message["role"] for message in made.episode.messages] == ["user", "assistant", "user", "assistant"]
    assert chain.sampled > 2
    assert made.episode.output is not None
    assert (made.episode.output.text, made.episode.output.exit_code) == ("heard two\n", 0)
    assert made.episode.output.runner == "agent0"


async def test_a_program_may_bring_its_reward_along(tmp_path: Path) -> None:
    made = await rollout(tmp_path, "ask([question]); sys.exit(10)", reward=ExitCodeReward())
    assert made.reward == Scored(0.0)
    crashed = await rollout(tmp_path, "ask([question]); raise ValueError", reward=ExitCodeReward())
    assert failure(crashed)[0] is FailureCause.VERIFIER


async def test_a_program_without_a_model_call_is_a_failure_with_a_hint(tmp_path: Path) -> None:
    cause, error, detail = failure(await rollout(tmp_path, 'print("I know it all")', reward=ExitCodeReward()))
    assert (cause, error) == (FailureCause.AGENT, "NoModelCallError")
    assert "I know it all" in detail


async def test_a_program_that_fails_is_worth_what_the_config_says(tmp_path: Path) -> None:
    script = 'ask([question]); print("no idea"); sys.exit(3)'
    cause, error, detail = failure(await rollout(tmp_path, script))
    assert (cause, error) == (FailureCause.AGENT, "ProgramError")
    assert "exit code 3" in detail
    assert "no idea" in detail
    assert (await rollout(tmp_path, script, on_agent_error=-1.0)).reward == Scored(-1.0, {"agent_error": 1.0})
    graded = await rollout(tmp_path, script, on_agent_error="grade")
    assert isinstance(graded.reward, Unscored)
    assert graded.episode is not None
    assert graded.episode.output is not None
    assert graded.episode.output.exit_code == 3
    never_asked = await rollout(tmp_path, "sys.exit(3)", on_agent_error="grade")
    assert failure(never_asked)[:2] == (FailureCause.AGENT, "ProgramError")


async def test_an_engine_that_fails_is_infrastructure(tmp_path: Path) -> None:
    class Broken(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            raise EngineError("no engine", remedy="wait")

    engine = Broken(["never"])
    assert failure(await rollout(tmp_path, "ask([question])", engine=engine))[0] is FailureCause.INFRA


async def test_a_place_that_cannot_be_set_up_is_told_as_such(tmp_path: Path) -> None:
    cause, error, detail = failure(await rollout(tmp_path, "ask([question])", folder="repos/{task.id}"))
    assert (cause, error) == (FailureCause.SETUP, "SetupError")
    assert "'t1'" in detail


@pytest.mark.real
async def test_a_program_that_runs_out_of_time_is_graded(tmp_path: Path) -> None:
    made = await rollout(tmp_path, "ask([question]); time.sleep(300)", seconds=3.0)
    assert isinstance(made.reward, Unscored)
    assert made.episode is not None
    assert made.episode.stop is StopReason.BUDGET
    assert made.episode.output is not None
    assert made.episode.output.exit_code is None


@pytest.mark.real
@pytest.mark.parametrize(
    ("reward", "score"),
    [
        (ExitCodeReward(), 0.0),
        (ExitCodeReward(out_of_time=0.25), 0.25),
        (FileReward(path="reward.txt"), 0.5),
        (VerifierReward(command=("grep", "-q", "0.5", "reward.txt")), 1.0),
    ],
)
async def test_a_program_that_runs_out_of_time_has_the_reward_of_what_it_did(
    tmp_path: Path, reward: ProgramReward, score: float
) -> None:
    """R2: time is the agent's own budget, so it is graded."""
    script = 'ask([question]); open("reward.txt", "w").write("0.5"); time.sleep(300)'
    made = await rollout(tmp_path, script, reward=reward, max_seconds=1.0)
    assert made.reward == Scored(score)
    assert made.episode is not None
    assert made.episode.stop is StopReason.BUDGET


@pytest.mark.real
async def test_a_program_that_was_ended_by_a_limit_has_no_score_for_its_time(tmp_path: Path) -> None:
    script = 'ask([question]); [open(f"{i}", "wb").write(b"0" * 900_000) for i in range(5)]; time.sleep(300)'
    made = await rollout(tmp_path, script, reward=ExitCodeReward(), on_agent_error="grade", disk_mb=1)
    cause, _, detail = failure(made)
    assert cause is FailureCause.VERIFIER
    assert "was ended by a limit" in detail


@pytest.mark.real
async def test_a_program_that_hangs_before_its_first_call_is_infrastructure(tmp_path: Path) -> None:
    cause, error, _ = failure(await rollout(tmp_path, "time.sleep(300)", seconds=1.0))
    assert (cause, error) == (FailureCause.INFRA, "Timeout")


@pytest.mark.real
async def test_the_agents_own_time_begins_with_its_first_call(tmp_path: Path) -> None:
    late = await rollout(tmp_path, "time.sleep(1.5); ask([question])", max_seconds=1.0)
    assert late.episode is not None
    assert late.episode.stop is StopReason.DONE
    assert late.episode.output is not None
    assert late.episode.output.start_seconds > 1.5
    assert late.episode.output.run_seconds < 1.5
    slow = await rollout(tmp_path, "ask([question]); time.sleep(300)", max_seconds=1.0)
    assert slow.episode is not None
    assert slow.episode.stop is StopReason.BUDGET


@pytest.mark.real
async def test_no_time_passes_while_the_engines_are_held(tmp_path: Path) -> None:
    held = Held()
    script = "ask([question]); time.sleep(2)"
    async with worker(tmp_path, script, held=held, max_seconds=1.0) as made, asyncio.timeout(50):
        running = asyncio.create_task(made.run(request()))
        while not running.done():
            await asyncio.sleep(0.05)
            held.seconds += 0.05
        rolled_out = running.result()
    assert rolled_out.episode is not None
    assert rolled_out.episode.stop is StopReason.DONE


async def test_each_rollout_has_one_of_several_programs(tmp_path: Path) -> None:
    scripts = ["ask([question])", "ask([question])"]
    async with worker(tmp_path, *scripts) as made:
        rollouts = await asyncio.gather(*(made.run(request(seed=seed)) for seed in range(12)))
        again = await made.run(request(seed=0))
    names = [one.episode.output.runner for one in rollouts if one.episode and one.episode.output]
    assert len(names) == 12
    counts = Counter(names)
    assert counts["agent1"] > counts["agent0"] > 0, "their weights are 2 and 1"
    assert again.episode is not None
    assert again.episode.output is not None
    assert again.episode.output.runner == names[0], "the same attempt has the same program"


async def test_cancelling_a_rollout_ends_its_program(tmp_path: Path) -> None:
    async with worker(tmp_path, f"ask([question]); open({str(tmp_path / 'asked')!r}, 'w'); time.sleep(300)") as made:
        running = asyncio.create_task(made.run(request()))
        async with asyncio.timeout(30):
            while not (tmp_path / "asked").exists():
                await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not [line for line in _command_lines() if str(tmp_path) in line]


def _command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found
