"""Rollout workers over a scripted engine: agents of every kind in this process, or the same agents on actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import yaml

from loopwright.build.agents import make_agents, open_agents
from loopwright.build.door import open_door
from loopwright.build.gateway import RunSessions, run_model_of
from loopwright.build.sampling import SamplingParts
from loopwright.config import DoorConfig, Loaded, load
from loopwright.core.redaction import Redactor
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.worker import embedded
from loopwright.errors import EngineError
from loopwright.gateway.remote_policy import RemoteSessionPolicies
from loopwright.gateway.takeover import NOTHING
from loopwright.models.tokenizer import load_tokenizer
from loopwright.ports import RolloutWorker
from loopwright.render.bytes import BYTES
from loopwright.serve.lease import LeaseHolder
from loopwright.testing import ScriptedEngine
from loopwright.testing.tiny import MAX_CONTEXT
from loopwright.types import GenerateRequest, RolloutKey, RolloutRequest, Sampling, Split, Task

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

TASK_SETS = ("own", "served", "program")
ANSWER = "Hello."
LONG = "a long answer, which takes its time"

AGENTS = '''
import asyncio, json, os, sys, urllib.request
from pathlib import Path

from loopwright.ports import AgentResult
from loopwright.types import Scored

HERE = Path(__file__).parent
(HERE / f"made-in-{os.getpid()}").touch()


class Text(str):
    def __str__(self):
        return "not what it holds"


class Number(int):
    pass


class Note(dict):
    pass


class Own:
    """Of a class that no other process has."""


class Agent:
    """What it does is the id of the task."""

    resumable = True

    async def run(self, task, policy):
        (HERE / f"began-{task.id}").write_text(str(os.getpid()))
        try:
            return await self.work(task, policy)
        finally:
            (HERE / f"ended-{task.id}").touch()

    async def work(self, task, policy):
        if task.id == "silent":
            await asyncio.sleep(1000)
        reply = await policy.reply(task.messages)
        if task.id == "raises":
            raise ValueError("no idea")
        if task.id == "waits":
            await asyncio.sleep(1000)
        if task.id == "exits":
            sys.exit(4)
        if task.id == "own classes":
            task.metadata["seen"] = Own()
            answer = Note(role="assistant", content=Text("mine"), notes=[Note(at=Number(3))])
            return AgentResult([*task.messages, answer], Scored(Number(1), {Text("a"): Number(2)}, Text("b")))
        if task.id == "own object":
            return [*task.messages, {"role": "assistant", "content": "mine", "info": Own()}]
        if task.id == "own reward":
            return AgentResult([*task.messages, reply.message], Scored(1.0, answer=Own()))
        if task.id == "no number":
            return AgentResult([*task.messages, reply.message], Scored(float("nan")))
        if task.id == "environment":
            said = {"torch": "torch" in sys.modules, "variables": sorted(os.environ), "pid": os.getpid()}
            return [*task.messages, {"role": "assistant", "content": json.dumps(said)}]
        return [*task.messages, reply.message]


def ask(base_url, api_key, messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + api_key, "content-type": "application/json"}
    request = urllib.request.Request(base_url + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]


async def serve(task, base_url, api_key):
    """Two conversations: the second one has two turns."""
    first = [{"role": "user", "content": "One."}]
    await asyncio.to_thread(ask, base_url, api_key, first)
    second = [{"role": "user", "content": "Two."}]
    second.append(await asyncio.to_thread(ask, base_url, api_key, second))
    (HERE / f"began-{task.id}").write_text(str(os.getpid()))
    if task.id == "exits":
        sys.exit(4)
    if task.id == "waits":
        await asyncio.sleep(1000)
    second.append({"role": "user", "content": "Go on."})
    await asyncio.to_thread(ask, base_url, api_key, second)


def choose(chains):
    return [chain for chain in chains if chain.turns == 2]
'''

PROGRAM = """
import json, os, sys, time, urllib.request
question = [{"role": "user", "content": sys.stdin.read()}]
body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": question}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
with urllib.request.urlopen(request, timeout=60) as reply:
    said = json.load(reply)["choices"][0]["message"]["content"]
if "wait" in question[0]["content"]:
    open(sys.argv[1] + "/began-program", "w").write(str(os.getpid()))
    time.sleep(1000)
open("reward.json", "w").write(json.dumps({"reward": len(said)}))
"""


@dataclass
class World:
    """A worker, and the engine behind it. `sessions` are those of agents behind a gateway that is reached over HTTP."""

    worker: RolloutWorker
    engine: ScriptedEngine
    controller: RolloutController
    folder: Path
    sessions: RemoteSessionPolicies | None = None
    _drawn: int = field(default=0)

    def request(self, task_set: str, task: str, words: str = "Hi", *, seconds: float = 60.0) -> RolloutRequest:
        """A rollout of a task whose id says what the agent does. No two have the same key."""
        self._drawn += 1
        key = RolloutKey(task_set, self._drawn, 0)
        return RolloutRequest(Split.TRAIN, key, Task.ask(task, words), Sampling(seed=7, max_new_tokens=64), seconds)

    async def began(self, task: str) -> int:
        """Wait until the agent of a task has begun. Returns its process."""
        file = self.folder / f"began-{task}"
        await until(lambda: file.is_file() and bool(file.read_text()))
        pid = int(file.read_text())
        file.unlink()
        return pid


async def until(done: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world(
    folder: Path,
    model: Path,
    cluster: Cluster | None = None,
    only: Collection[str] = TASK_SETS,
    *,
    gateway_actor: bool = False,
) -> AsyncIterator[World]:
    """The agents of some task sets, in this process, or on an actor each of `cluster`. `model` is a folder with a
    tokenizer."""
    loaded = written(folder, model, only, num_actors=0 if cluster is None else 1, gateway_actors=int(gateway_actor))
    spec = SimpleNamespace(tokenizer=load_tokenizer(str(model)), max_context=MAX_CONTEXT)
    engine = _engine(spec.tokenizer)
    async with AsyncExitStack() as stack:
        crews = {}
        if cluster is not None:
            from loopwright.build.hosted_worker import open_loop_crews

            crews = await stack.enter_async_context(open_loop_crews(loaded, cluster))
        agents = make_agents(loaded, lambda place: place not in crews)
        await open_agents(agents, stack)
        sampling = SamplingParts(loaded, agents, (), (), (), crews, spec)
        controller = await stack.enter_async_context(RolloutController.open([embedded(engine)]))
        elsewhere = reached = None
        if cluster is not None:
            card = ModelCard("tiny", MAX_CONTEXT)
            door = await stack.enter_async_context(open_door(DoorConfig(host=cluster.address), controller, card))
            reached = run_model_of(loaded.config, spec, door.address)
            opening = RunSessions(
                loaded, reached, LeaseHolder("a" * 16, 0), NOTHING, controller.held_seconds, Redactor()
            )
            elsewhere = opening.here(controller, spec, cluster.address)
            if gateway_actor:
                from loopwright.build.hosted_gateway import sessions_on_actor

                elsewhere = sessions_on_actor(opening, cluster)
        kept: list[RemoteSessionPolicies] = []
        worker = await stack.enter_async_context(
            sampling.worker(
                controller,
                controller.held_seconds,
                elsewhere=None if elsewhere is None else _noted(elsewhere, kept),
                reached=reached,
            )
        )
        yield World(worker, engine, controller, folder, kept[0] if kept else None)


@asynccontextmanager
async def _noted(opening: Any, kept: list[RemoteSessionPolicies]) -> AsyncIterator[RemoteSessionPolicies]:
    async with opening as sessions:
        kept.append(sessions)
        yield sessions


def _engine(tokenizer: Any) -> ScriptedEngine:
    vocabulary, end = tokenizer.get_vocab(), tokenizer.eos_token_id
    letters = {byte: letter for letter, byte in BYTES.items()}

    def encoded(text: str) -> tuple[int, ...]:
        return (*(vocabulary[letters[byte]] for byte in text.encode()), end)

    def answer(request: GenerateRequest) -> str:
        asked = tokenizer.decode(request.prompt_ids)
        if "break" in asked:
            raise EngineError("scripted fault", remedy="none: the test asked for it")
        return LONG if "slowly" in asked else ANSWER

    def seconds(request: GenerateRequest) -> float:
        return 1.5 if "slowly" in tokenizer.decode(request.prompt_ids) else 0.0

    return ScriptedEngine(answer, encode=encoded, seconds=seconds)


def written(
    folder: Path,
    model: Path,
    only: Collection[str] = TASK_SETS,
    *,
    num_actors: int = 1,
    gateway_actors: int = 0,
    **changes: Any,
) -> Loaded:
    """A config with the agents of some task sets. `changes` are settings of these agents."""
    (folder / "agents.py").write_text(AGENTS)
    (folder / "program.py").write_text(PROGRAM)
    placed = {"num_actors": num_actors, "num_cpus_per_actor": 0.1} if num_actors else {}
    command = {"kind": "command", "command": ["python", "{config}/program.py", "{config}"], "stdin": "instruction"}
    agents: dict[str, dict[str, Any]] = {
        "own": {"kind": "python", "path": "agents.py:Agent", "judger": "integer_answer"},
        "served": {
            "kind": "callable",
            "path": "agents.py:serve",
            "judger": "integer_answer",
            "train": "agents.py:choose",
        },
        "program": {"kind": "remote", "runner": command, "reward": {"kind": "file", "path": "reward.json"}},
    }
    data = {"kind": "python", "path": "agents.py:Agent"}
    config = {
        "model": {"path": str(model)},
        "task_sets": [
            {"name": name, "data": data, "agent": {**agent, **placed, **changes}}
            for name, agent in agents.items()
            if name in only
        ],
        "gateway": {"num_actors": gateway_actors, "num_cpus_per_actor": 0.1} if gateway_actors else {},
        "trainer": {"run_dir": str(folder / "run"), "steps": 1},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    return load(file)
