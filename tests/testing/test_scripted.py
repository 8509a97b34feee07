"""The scripted engine keeps an engine's promises."""

from __future__ import annotations

import asyncio

import pytest

from loopwright.errors import EngineError
from loopwright.ports import Engine, Lockstep, PauseMode
from loopwright.testing import ScriptedEngine, encode_chars
from loopwright.types import FinishReason, GenerateRequest, Sampling


def request(id: str = "r", **sampling: int) -> GenerateRequest:
    return GenerateRequest(id, (1, 2), Sampling(**sampling))  # type: ignore[arg-type]


async def test_it_is_an_engine_that_stamps_its_version() -> None:
    scripted = ScriptedEngine(["ab", (7, 8)])
    engine: Engine = scripted
    lockstep: Lockstep = scripted
    lockstep.expect(2)
    assert scripted.expected == [2]
    first = await engine.generate(request())
    assert first.ids == encode_chars("ab")
    assert len(first.logprobs) == len(first.versions) == 3
    await engine.load(5)
    second = await engine.generate(request())
    assert (second.ids, second.versions, engine.version) == ((7, 8), (5, 5), 5)


async def test_it_stops_at_max_new_tokens() -> None:
    cut = await ScriptedEngine(["abc"]).generate(request(max_new_tokens=2))
    assert (cut.ids, cut.finish) == (encode_chars("abc")[:2], FinishReason.LENGTH)
    whole = await ScriptedEngine(["abc"]).generate(request(max_new_tokens=4))
    assert whole.finish is FinishReason.STOP


async def test_faults_hit_the_calls_that_were_named() -> None:
    engine = ScriptedEngine(["a"], faults={1})
    await engine.generate(request())
    with pytest.raises(EngineError):
        await engine.generate(request())
    await engine.generate(request())


@pytest.mark.parametrize(
    ("mode", "finish"), [(PauseMode.DRAIN, FinishReason.STOP), (PauseMode.ABORT, FinishReason.ABORT)]
)
async def test_pause_waits_for_what_runs_and_holds_new_requests_back(mode: PauseMode, finish: FinishReason) -> None:
    engine = ScriptedEngine(["a long answer"], steps=1)
    running = asyncio.create_task(engine.generate(request("one")))
    await asyncio.sleep(0)
    await engine.pause(mode)
    assert (await running).finish is finish
    held = asyncio.create_task(engine.generate(request("two")))
    await asyncio.sleep(0.01)
    assert not held.done()
    await engine.resume()
    assert (await held).finish is FinishReason.STOP
