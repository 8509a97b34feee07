"""An engine that dies in the middle of an answer and comes back: each token once, stamped with who sampled it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from controller_pool import ask, whole
from counting import PART, CountingEngine

from loopwright.agents import EnginePolicy
from loopwright.engines.restartable import RestartableEngine
from loopwright.errors import EngineError, EngineLostError
from loopwright.ports import OnPart
from loopwright.testing import CharRenderer, ScriptedEngine, run_virtually
from loopwright.types import FinishReason, GenerateRequest, Generation, PauseMode, Sampling

DEAD = EngineLostError("nobody is there", remedy="none: the test wants it so")


class Mortal:
    """A `StreamingEngine` whose lives end after so many tokens each. Between two of them it refuses `away` calls. Each
    life has a version of its own."""

    def __init__(self, lives: Sequence[int], *, away: int = 0) -> None:
        self._lives = list(lives)
        self._away = away
        self._refuse = 0
        self.version = 0
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if self._refuse:
            self._refuse -= 1
            raise DEAD
        self.requests.append(request)
        life = self._lives.pop(0) if self._lives else None
        engine = CountingEngine(version=self.version)
        told = 0

        def tell(part: Generation) -> None:
            nonlocal told
            told += len(part.ids)
            if on_part is not None:
                on_part(part)
            if life is not None and told >= life:
                engine.dead.set()

        if life == 0 or (life is not None and on_part is None):
            engine.dead.set()
        with suppress(EngineLostError):
            got = await engine.generate(request, tell)
            # One that dies after its last token cannot say any more that it has ended.
            if not engine.dead.is_set():
                return got
        self.version, self._refuse = self.version + 1, self._away
        raise DEAD

    async def abort(self, request_id: str) -> None:
        """Not used."""

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Not used."""

    async def resume(self) -> None:
        """Not used."""

    async def load(self, version: int, update: Any = None) -> None:
        """Not used."""

    async def probe(self, request: GenerateRequest) -> Any:
        """Not used."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.engines.restartable.FIRST_PAUSE_SECONDS", 0.01)


async def test_a_streamed_answer_goes_on_from_its_tokens() -> None:
    engine, heard = Mortal([2 * PART, PART], away=2), list[Generation]()
    got = await RestartableEngine(engine).generate(ask(), heard.append)
    assert whole(got)
    assert got.versions == (0,) * 2 * PART + (1,) * PART + (2,) * (40 - 3 * PART)
    assert [token for part in heard for token in part.ids] == list(got.ids)[: sum(len(part.ids) for part in heard)]
    assert [request.sampled_before for request in engine.requests] == [0, 2 * PART, 3 * PART]
    assert [request.sampling.max_new_tokens for request in engine.requests] == [40, 40 - 2 * PART, 40 - 3 * PART]


async def test_an_answer_that_nobody_hears_begins_anew() -> None:
    engine = Mortal([0, 0], away=1)
    assert whole(await RestartableEngine(engine).generate(ask()))
    assert [request.sampled_before for request in engine.requests] == [0, 0, 0]


async def test_an_engine_that_only_had_to_say_that_it_had_ended() -> None:
    engine = Mortal([40])
    got = await RestartableEngine(engine).generate(ask(), lambda part: None)
    assert whole(got)
    assert got.finish is FinishReason.LENGTH
    assert len(engine.requests) == 1


async def test_a_call_waits_so_long_and_no_longer() -> None:
    engine, begun = Mortal([PART], away=1000), time.monotonic()
    with pytest.raises(EngineLostError, match="nobody is there"):
        await RestartableEngine(engine, 0.4).generate(ask(), lambda part: None)
    assert 0.1 < time.monotonic() - begun < 2
    with pytest.raises(EngineLostError):
        await RestartableEngine(Mortal([0]), 0.0).generate(ask(), lambda part: None)


class Away(ScriptedEngine):
    """Is there from second 50 on."""

    tries = 0

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        self.tries += 1
        if asyncio.get_running_loop().time() < 50:
            raise DEAD
        return await super().generate(request, on_part)


def test_an_engine_that_is_long_away_is_asked_for_once_a_second() -> None:
    """More often, hundreds of waiting calls are a burden to it; less often, they miss it."""

    async def asked() -> tuple[int, float]:
        engine = Away(["Hello."])
        await RestartableEngine(engine, 60.0).generate(ask())
        return engine.tries, asyncio.get_running_loop().time()

    tries, end = run_virtually(asked())
    assert 50 <= end <= 51
    assert 50 <= tries <= 60


def test_every_token_gives_the_next_engine_the_whole_time() -> None:
    async def asked() -> tuple[Generation, float]:
        got = await RestartableEngine(Mortal([PART, PART], away=45), 60.0).generate(ask(), lambda part: None)
        return got, asyncio.get_running_loop().time()

    got, end = run_virtually(asked())
    assert whole(got)
    assert end > 60, "both engines together were away for longer than a call waits for one"


async def test_an_answer_that_kills_every_engine_is_given_up() -> None:
    engine = Mortal([PART] * 9)
    with pytest.raises(EngineLostError):
        await RestartableEngine(engine).generate(ask(), lambda part: None)
    assert len(engine.requests) == 4


async def test_an_engine_that_says_what_is_wrong_is_believed() -> None:
    engine = ScriptedEngine(["Hello."], faults={0})
    with pytest.raises(EngineError, match="scripted fault"):
        await RestartableEngine(engine).generate(ask(), lambda part: None)
    assert len(engine.requests) == 1


async def test_a_call_that_waits_can_be_cancelled() -> None:
    call = asyncio.create_task(RestartableEngine(Mortal([0], away=1000)).generate(ask()))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


class Interrupted(ScriptedEngine):
    """Is lost once, before its first token."""

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if not self.requests:
            self.requests.append(request)
            raise DEAD
        return await super().generate(request, on_part)


async def test_an_agents_policy_sees_one_slower_reply() -> None:
    engine = Interrupted(["Hello."])
    policy = EnginePolicy(RestartableEngine(engine), CharRenderer(), Sampling(), "r", 100)
    assert (await policy.reply([{"role": "user", "content": "Hi"}])).text == "Hello."
    assert len(policy.turns) == 1
    assert policy.fault is None
