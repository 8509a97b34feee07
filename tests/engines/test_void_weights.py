"""When the learner is lost, the engines of a pool stay, and serve nothing until they have other weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from controller_pool import FILE, ask, pool, start, under_way, until, whole
from counting import Nursery

from loopwright.errors import LearnerLostError
from loopwright.types import FinishReason

LOST = LearnerLostError.of_rank(1, "it was ended by signal 9", "")
NEXT = replace(FILE, path="/nowhere/next")


async def test_a_learner_that_is_lost_in_a_proof_costs_no_engine_and_nothing_is_served() -> None:
    is_lost = True

    async def prove(name: str, engine: Any, version: int) -> None:
        if is_lost and engine.number == 0:
            raise LOST

    one, two = Nursery(), Nursery()
    async with pool(one, two, prove=prove) as controller:
        with pytest.raises(LearnerLostError):
            await controller.load(5, FILE)
        (waiting,) = start(controller, ask())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert not any(engine.requests for engine in (*one.engines, *two.engines))
        is_lost = False
        await controller.load(4, NEXT)
        answer = await waiting
        assert whole(answer)
        assert set(answer.versions) == {4}
        assert [engine.loads for engine in (*one.engines, *two.engines)] == [[(5, FILE), (4, NEXT)]] * 2


async def test_what_was_sampled_with_void_weights_is_cut_off_and_what_was_not_begun_waits() -> None:
    nursery = Nursery(seconds=0.001)
    async with pool(nursery) as controller:
        (begun,) = start(controller, ask(tokens=10_000))
        await under_way(nursery)
        await controller.void_weights()
        cut = await begun
        assert cut.finish is FinishReason.ABORT
        assert 0 < len(cut.ids) < 10_000
        (waiting,) = start(controller, ask("b/0"))
        await controller.resume()
        await asyncio.sleep(0.02)
        assert not waiting.done(), "a resumed pool does not serve void weights either"
        await controller.load(2, NEXT)
        assert set((await waiting).versions) == {2}


async def test_an_engine_that_is_started_again_meanwhile_gets_the_next_weights_only() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        await controller.load(5, FILE)
        await controller.void_weights()
        nursery.engines[0].dead.set()
        await until(lambda: len(nursery.engines) == 2 and controller._pool._members[0].engine is nursery.engines[1])
        await controller.load(4, NEXT)
        await controller.resume()
        assert set((await controller.generate(ask())).versions) == {4}
        assert nursery.engines[1].loads == [(4, NEXT)]


async def test_an_engine_that_comes_back_while_the_learner_is_lost_is_not_given_up() -> None:
    proofs = 0

    async def prove(name: str, engine: Any, version: int) -> None:
        nonlocal proofs
        proofs += 1
        if proofs == 2:
            raise LOST

    nursery = Nursery()
    async with pool(nursery, prove=prove) as controller:
        await controller.load(1, FILE)
        nursery.engines[0].dead.set()
        assert set((await controller.generate(ask())).versions) == {1}
        assert len(nursery.engines) == 3
