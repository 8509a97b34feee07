"""The controller over engines that die, hang and refuse: no token is lost, and a budget ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from controller_pool import FILE, ask, pool, start, under_way, until, whole
from counting import CountingEngine, Nursery

from loopwright.engines import supervised
from loopwright.engines.controller import MAX_BREAKS
from loopwright.engines.worker import Worker
from loopwright.errors import BudgetError, ClusterRoomError, EngineError, EngineLostError, WeightsError
from loopwright.types import GenerateRequest, Generation, PauseMode

pytestmark = pytest.mark.usefixtures("quick_restarts")


async def test_a_broken_answer_goes_on_from_the_tokens_that_came() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        nursery.engines[0].dead.set()
        assert whole(await task)
    again = nursery.engines[1].requests[0]
    assert again.sampled_before >= 4
    assert again.sampled_before % 4 == 0, "at most the last part is lost"


async def test_the_time_in_which_nobody_is_answered_is_counted() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        clock = asyncio.get_running_loop().time
        begun = clock()
        await controller.pause(PauseMode.KEEP)
        await controller.pause(PauseMode.ABORT)
        [task] = start(controller, ask())
        await asyncio.sleep(0.03)
        await controller.resume()
        paused = clock() - begun
        assert whole(await task)
        held = controller.held_seconds()
        assert 0.03 <= held <= paused + 0.01, "once, although there are two reasons"
        await asyncio.sleep(0.03)
        assert controller.held_seconds() == held
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervised, "FIRST_PAUSE_SECONDS", 0.05)
            nursery.engines[0].dead.set()
            assert whole(await controller.generate(ask()))
        assert controller.held_seconds() >= held + 0.04, "while it is started again"


async def test_who_listens_hears_every_token_once_whatever_happens_to_the_engines() -> None:
    nursery, heard = Nursery(), list[Generation]()
    async with pool(nursery) as controller:
        task = asyncio.create_task(controller.generate(ask(), heard.append))
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        await controller.load(1, FILE)
        await controller.resume()
        await until(lambda: len(nursery.engines[0].requests) == 2)
        await asyncio.sleep(0.015)
        nursery.engines[0].dead.set()
        answer = await task
    assert whole(answer)
    assert len(heard) > 2
    assert tuple(token for part in heard for token in part.ids) == answer.ids
    assert tuple(version for part in heard for version in part.versions) == answer.versions


async def test_a_new_engine_has_the_current_weights_before_it_serves() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        await controller.load(7, FILE)
        [task] = start(controller, ask())
        await under_way(nursery)
        nursery.engines[0].dead.set()
        generation = await task
    assert set(generation.versions) == {7}
    assert nursery.engines[1].loads == [(7, FILE)]


async def test_an_engine_that_dies_in_a_weight_update_comes_back_with_the_new_ones() -> None:
    class Fragile(CountingEngine):
        async def load(self, version: int, weights: Any = None) -> None:
            if self.number == 0:
                self.dead.set()
            await super().load(version, weights)

    nursery = Nursery(make=Fragile)
    async with pool(nursery) as controller:
        await controller.load(1, FILE)
        assert set((await controller.generate(ask())).versions) == {1}


async def test_unfit_weights_for_a_new_engine_end_the_run_with_their_own_error() -> None:
    class Picky(CountingEngine):
        async def load(self, version: int, weights: Any = None) -> None:
            if self.number:
                raise WeightsError("the file is gone", remedy="write it again")
            await super().load(version, weights)

    nursery = Nursery(make=Picky)
    async with pool(nursery) as controller:
        await controller.load(1, FILE)
        nursery.engines[0].dead.set()
        with pytest.raises(WeightsError, match="gone"):
            await controller.generate(ask())


async def test_weights_that_an_engine_refuses_change_nothing() -> None:
    class Picky(CountingEngine):
        async def load(self, version: int, weights: Any = None) -> None:
            raise WeightsError("the file is gone", remedy="write it again")

    async with pool(Nursery(make=Picky)) as controller:
        with pytest.raises(WeightsError):
            await controller.load(1, FILE)
        assert controller.version == 0
        assert set((await controller.generate(ask())).versions) == {0}


async def test_a_spent_budget_is_an_error_with_the_last_words() -> None:
    nursery = Nursery()
    async with pool(nursery, max_restarts=2) as controller:
        nursery.stillborn = 99
        nursery.engines[0].dead.set()
        with pytest.raises(BudgetError, match=r"lost 3 times .* it cannot start"):
            await controller.generate(ask())


class Crowded(Nursery):
    """Finds no room so many times."""

    no_room = 0

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[Worker]:
        if self.no_room:
            self.no_room -= 1
            await asyncio.sleep(0.001)
            raise ClusterRoomError("it takes 2 CPUs. Free are: n1 has 1 CPU", remedy="add nodes")
        async with super().launch() as worker:
            yield worker


async def test_an_engine_without_room_waits_as_long_as_others_serve() -> None:
    crowded, other = Crowded(), Nursery()
    async with pool(crowded, other, max_restarts=1) as controller:
        crowded.no_room = 20
        crowded.engines[0].dead.set()
        await until(lambda: len(crowded.engines) == 2)
        assert whole(await controller.generate(ask()))
        assert len(other.engines) == 1


async def test_engines_without_room_are_given_up_if_none_serves() -> None:
    crowded = Crowded()
    async with pool(crowded, max_restarts=9) as controller:
        crowded.no_room = 99
        crowded.engines[0].dead.set()
        with pytest.raises(ClusterRoomError, match="Free are: n1 has 1 CPU"):
            await controller.generate(ask())
    assert crowded.no_room == 98


async def test_an_answer_refills_the_budget() -> None:
    nursery = Nursery()
    async with pool(nursery, max_restarts=1) as controller:
        for life in range(4):
            await until(lambda life=life: len(nursery.engines) > life)
            assert whole(await controller.generate(ask()))
            nursery.engines[-1].dead.set()
        assert whole(await controller.generate(ask()))


async def test_an_engine_that_never_started_is_not_tried_again() -> None:
    """A wrong model path stays wrong."""
    nursery = Nursery()
    nursery.stillborn = 1
    with pytest.raises(BudgetError, match="it cannot start"):
        async with pool(nursery, max_restarts=5):
            pass
    assert nursery.engines == []


async def test_a_request_that_kills_every_engine_is_given_up() -> None:
    class Allergic(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            if request.id == "poison/0":
                self.dead.set()
            return await super().generate(request, on_part)

    nursery = Nursery(make=Allergic)
    async with pool(nursery, max_restarts=50) as controller:
        with pytest.raises(EngineLostError):
            await controller.generate(ask("poison/0"))
        assert len(nursery.engines) >= MAX_BREAKS + 1
        assert whole(await controller.generate(ask()))


async def test_what_an_engine_refuses_is_not_asked_again() -> None:
    class Strict(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            self.requests.append(request)
            raise EngineError("no such token", remedy="render anew")

    nursery = Nursery(make=Strict)
    async with pool(nursery) as controller:
        with pytest.raises(EngineError, match="no such token"):
            await controller.generate(ask())
    assert len(nursery.engines[0].requests) == 1


async def test_an_engine_that_hangs_is_replaced() -> None:
    """Its process lives, but the connection is lost."""

    class Hanging(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            if self.number == 0:
                raise EngineLostError("silence", remedy="none")
            return await super().generate(request, on_part)

    nursery = Nursery(make=Hanging)
    async with pool(nursery) as controller:
        assert whole(await controller.generate(ask()))
    assert len(nursery.engines) == 2


async def test_a_drain_waits_also_for_an_answer_that_lost_its_engine() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        pausing = asyncio.create_task(controller.pause(PauseMode.DRAIN))
        await asyncio.sleep(0.005)
        nursery.engines[0].dead.set()
        await pausing
        assert task.done()
        assert whole(await task)


@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.KEEP])
async def test_an_engine_that_dies_while_it_is_paused_costs_no_answer(mode: PauseMode) -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(mode)
        nursery.engines[0].dead.set()
        await until(lambda: len(nursery.engines) == 2)
        await asyncio.sleep(0.01)
        assert not task.done()
        await controller.load(1, FILE)
        await controller.resume()
        assert whole(await task)
