"""The controller: an engine that does not die, over engines that do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from counting import CountingEngine, Nursery

from loopwright.engines import supervised
from loopwright.engines.controller import MAX_BREAKS, RolloutController
from loopwright.errors import BudgetError, EngineError, EngineLostError, WeightsError
from loopwright.types import FinishReason, GenerateRequest, Generation, PauseMode, Sampling, WeightFile

PROMPT = tuple(range(5))
FILE = WeightFile("/nowhere/weights", 1, "crc32:0", {})


@pytest.fixture(autouse=True)
def _quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(supervised, "LAST_WORDS_SECONDS", 0.01)


def ask(id: str = "a/0", tokens: int = 40, *, resumable: bool = False) -> GenerateRequest:
    return GenerateRequest(id, PROMPT, Sampling(max_new_tokens=tokens), resumable)


def whole(generation: Generation, tokens: int = 40) -> bool:
    """Every token once, in its place, and in the order of versions."""
    return (
        generation.ids == tuple(range(len(PROMPT), len(PROMPT) + tokens))
        and len(generation.versions) == len(generation.logprobs) == tokens
        and generation.finish is FinishReason.LENGTH
        and tuple(sorted(generation.versions)) == generation.versions
    )


@asynccontextmanager
async def pool(*nurseries: Nursery, **options: Any) -> AsyncIterator[RolloutController]:
    async with asyncio.timeout(20), RolloutController.open([n.launch for n in nurseries], **options) as controller:
        yield controller


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def under_way(nursery: Nursery, calls: int = 1) -> None:
    """Wait until the youngest engine has as many calls, and has counted in them for a while."""
    await until(lambda: len(nursery.engines[-1].requests) >= calls)
    await asyncio.sleep(0.015)


def start(controller: RolloutController, *requests: GenerateRequest) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(controller.generate(request)) for request in requests]


# Weight updates.


async def test_a_loop_that_is_not_resumable_sees_one_slower_call() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        await asyncio.sleep(0.01)
        assert not task.done()
        await controller.load(1, FILE)
        await controller.resume()
        generation = await task
    assert whole(generation)
    assert set(generation.versions) == {0, 1}
    first, second = nursery.engines[0].requests
    assert second.prompt_ids == tuple(range(len(second.prompt_ids))), "prompt and partial answer"
    assert second.sampled_before == len(second.prompt_ids) - len(first.prompt_ids) > 0


async def test_a_resumable_call_returns_with_what_it_has() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask(resumable=True))
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        generation = await task
    assert generation.finish is FinishReason.ABORT
    assert 0 < len(generation.ids) < 40


async def test_when_an_aborting_pause_returns_no_resumable_call_is_left_that_came_before() -> None:
    """Not even one whose request was still on its way to its engine."""

    class Late(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            await asyncio.sleep(0.03)
            return await super().generate(request, on_part)

    nursery = Nursery(make=Late)
    async with pool(nursery) as controller:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("loopwright.engines.controller.STRAGGLER_SECONDS", 0.05)
            tasks = start(controller, ask("a/0", resumable=True), ask("b/0"))
            await asyncio.sleep(0.01)
            await controller.pause(PauseMode.ABORT)
            await asyncio.sleep(0)
        assert (await tasks[0]).ids == ()
        assert not tasks[1].done()
        await controller.resume()
        assert whole(await tasks[1])


async def test_new_calls_wait_while_the_pool_is_paused() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        for mode in PauseMode:
            await controller.pause(mode)
            tasks = start(controller, ask("a/0", resumable=True), ask("b/0"))
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in tasks)
            await controller.resume()
            assert all([whole(await task) for task in tasks])


async def test_keep_goes_on_in_place() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.KEEP)
        await controller.load(1)
        await controller.resume()
        generation = await task
    assert whole(generation)
    assert set(generation.versions) == {0, 1}
    assert len(nursery.engines[0].requests) == 1


async def test_a_pool_that_was_paused_by_abort_can_be_drained_without_waiting_for_those_who_wait() -> None:
    """As a trainer does that makes sure that nothing moves."""
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.ABORT)
        async with asyncio.timeout(1):
            await controller.pause(PauseMode.DRAIN)
        assert not task.done()
        await controller.resume()
        assert whole(await task)


async def test_to_drain_what_was_kept_lets_it_finish() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.pause(PauseMode.KEEP)
        await controller.pause(PauseMode.DRAIN)
        assert whole(await task)
        await controller.resume()


# Deaths.


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
        with pytest.raises(BudgetError, match=r"died 3 times .* it cannot start"):
            await controller.generate(ask())


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


async def test_leaving_ends_the_engines() -> None:
    nursery = Nursery()
    async with pool(nursery):
        pass
    assert nursery.engines[0].dead.is_set()


# Ending calls early.


async def test_an_aborted_call_returns_even_if_it_is_not_resumable() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask())
        await under_way(nursery)
        await controller.abort("a/0")
        assert (await task).finish is FinishReason.ABORT


async def test_a_call_that_waits_can_be_aborted() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        await controller.pause(PauseMode.DRAIN)
        [task] = start(controller, ask())
        await asyncio.sleep(0.01)
        await controller.abort("a/0")
        assert (await task).ids == ()


async def test_a_cancelled_call_is_taken_from_its_engine() -> None:
    nursery = Nursery()
    async with pool(nursery) as controller:
        [task] = start(controller, ask(tokens=10_000))
        await under_way(nursery)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await controller.pause(PauseMode.DRAIN)
        assert nursery.engines[0]._live == {}


# More than one engine.


async def test_calls_go_to_the_engine_that_has_the_fewest() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two) as controller:
        await asyncio.gather(*start(controller, *(ask(f"s{i}/0") for i in range(10))))
    assert [len(n.engines[0].requests) for n in (one, two)] == [5, 5]


async def test_a_session_stays_with_its_engine() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two) as controller:
        tasks = start(controller, *(ask(f"task/3/{i}/0", 400) for i in range(3)))
        await asyncio.sleep(0.01)
        homes = {r.id.rpartition("/")[0]: n for n in (one, two) for r in n.engines[0].requests}
        for session, home in homes.items():
            await controller.generate(ask(f"{session}/1", 1))
            assert home.engines[0].requests[-1].id == f"{session}/1"
        for task in tasks:
            task.cancel()


async def test_all_engines_load_and_one_that_is_given_up_does_not_stop_the_others() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two, max_restarts=0) as controller:
        await controller.load(2, FILE)
        assert [n.engines[0].version for n in (one, two)] == [2, 2]
        one.engines[0].dead.set()
        assert whole(await controller.generate(ask()))
        two.engines[0].dead.set()
        with pytest.raises(BudgetError, match="says goodbye"):
            await controller.generate(ask())
