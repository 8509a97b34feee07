"""Which worker of a relay answers a call that has lost its own."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from loopwright.engines.http.client import HttpEngine
from loopwright.engines.relayed import RelayedEngines
from loopwright.engines.restartable import RestartableEngine
from loopwright.errors import EngineLostError
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling


class Client:
    """The client of a worker. The call `begun/1` gets one token, and is lost when the worker `dies`."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.is_connected = True
        self.asked: list[tuple[str, int]] = []
        self.dies = asyncio.Event()

    async def hear_state(self) -> None:
        pass

    async def generate(self, request: GenerateRequest, on_part: Any) -> Generation:
        self.asked.append((request.id, request.sampled_before))
        if request.id == "begun/1" and not request.sampled_before:
            on_part(Generation((1,), (-1.0,), (self.version,), FinishReason.ABORT))
            await self.dies.wait()
            raise EngineLostError("the worker is gone", remedy="none: the test wants it so")
        return Generation((2,), (-1.0,), (self.version,), FinishReason.STOP)


def request(id: str) -> GenerateRequest:
    return GenerateRequest(id, (5,), Sampling(max_new_tokens=4), affinity="group")


@pytest.mark.parametrize("between", ["begun/2", "another/1"], ids=["the same session", "the same group"])
async def test_a_begun_answer_goes_on_at_its_version_also_if_its_session_or_group_has_moved(between: str) -> None:
    lost, other, same = Client(1), Client(2), Client(1)
    engines = RelayedEngines()
    for name, client in (("lost", lost), ("other", other), ("same", same)):
        engines.join(name, cast(HttpEngine, client), lambda client=client: client.is_connected)  # type: ignore[misc]
    engine = RestartableEngine(engines, 5.0, keeps_all=True)
    going = asyncio.create_task(engine.generate(request("begun/1")))
    while not lost.asked:
        await asyncio.sleep(0)
    lost.is_connected = False
    async with asyncio.timeout(5):
        await engine.generate(request(between))
        lost.dies.set()
        answer = await going
    assert answer.versions == (1, 1)
    assert other.asked == [(between, 0)]
    assert same.asked == [("begun/1", 1)]
