"""Shared by the tests of a gateway for runs: a gateway with a scripted model, and runs that register with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from gateway_house import KEY, MAX_CONTEXT, RecordingEngine, odd_ids, renderer

from loopwright.agents.callable import CallableLoop
from loopwright.agents.worker import AgentSetup, LocalWorker
from loopwright.gateway.client import GatewayAddress
from loopwright.gateway.offer import Served
from loopwright.gateway.registration import (
    DoorAddress,
    Registration,
    RunModel,
)
from loopwright.gateway.remote_policy import RemoteSessionPolicies, open_remote_policies
from loopwright.gateway.server import Address, Gateway, open_gateway_for_runs
from loopwright.gateway.store import SqliteStore
from loopwright.gateway.takeover import NOTHING, Unfinished
from loopwright.ports import PolicyMaker
from loopwright.serve.lease import LeaseHolder
from loopwright.types import (
    Failed,
    FailureCause,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Split,
    Task,
    Thinking,
)

RUN, OTHER = "a" * 16, "b" * 16
DOOR_KEY = "lw-the-key-of-the-door"
TASK = Task.ask("t1", "What is 1+1?", truth=2)
ASK = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}


def registration(run: str = RUN, lineage: int = 0, opening: str = "0" * 8) -> Registration:
    door = DoorAddress("http://127.0.0.1:1", DOOR_KEY)
    model = RunModel(door, "models/tiny", "tiny", None, MAX_CONTEXT, "auto", Thinking.KEEP)
    return Registration(LeaseHolder(run, lineage), opening, model)


class Door:
    """Connects a gateway to a scripted engine, whose held seconds a test moves."""

    def __init__(self) -> None:
        self.engine = RecordingEngine(lambda request: "Hello.", encode=odd_ids)
        self.held = 0.0
        self.error: Exception | None = None

    @asynccontextmanager
    async def connect(self, model: RunModel) -> AsyncIterator[tuple[Served, Callable[[], float]]]:
        if self.error is not None:
            raise self.error
        yield Served(self.engine, renderer(), model.max_context, model.source), lambda: self.held


@asynccontextmanager
async def gateway(
    store: Path, door: Door | None = None, port: int = 0, wait_seconds: float = 10.0
) -> AsyncIterator[Gateway]:
    async with (
        SqliteStore(store / "sessions.sqlite") as sessions,
        open_gateway_for_runs(
            (door or Door()).connect, sessions, key=KEY, address=Address(port=port), wait_seconds=wait_seconds
        ) as opened,
    ):
        yield opened


@asynccontextmanager
async def policies(
    url: str,
    who: Registration | None = None,
    unfinished: Unfinished = NOTHING,
    *,
    key: str = KEY,
    wait_seconds: float = 10.0,
) -> AsyncIterator[RemoteSessionPolicies]:
    address = GatewayAddress(url, key, wait_seconds)
    async with open_remote_policies(address, who or registration(), unfinished, beat_seconds=0.02) as made:
        yield made


def request(draw: int = 0, seconds: float = 60.0) -> RolloutRequest:
    return RolloutRequest(Split.TRAIN, RolloutKey("train", draw, 0), TASK, Sampling(seed=7), seconds)


def worker(made: PolicyMaker, agent: Callable[..., Awaitable[object]]) -> LocalWorker:
    return LocalWorker({(Split.TRAIN, "train"): AgentSetup(CallableLoop(agent), served=True)}, made, made)


async def ask(url: str, key: str) -> httpx.Response:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=30) as http:
        return await http.post(f"{url}/chat/completions", json=ASK)


def managing(opened: Gateway) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=opened.base_url, headers={"authorization": f"Bearer {KEY}"})


async def asks_twice(task: Task, base_url: str, api_key: str) -> None:
    for _ in range(2):
        (await ask(base_url, api_key)).raise_for_status()


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def failure(made: Rollout) -> tuple[FailureCause, str]:
    assert isinstance(made.reward, Failed), made.reward
    return made.reward.cause, made.reward.error
