"""Engines that live and answer, but with errors: they are replaced, and the calls go on elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controller_pool import ask, pool, until, whole
from counting import PART, CountingEngine, Nursery

from loopwright.engines.controller import MAX_BREAKS
from loopwright.engines.supervised import SICK_AFTER, Supervised
from loopwright.errors import BudgetError, EngineError, LoopwrightError, UnanswerableError
from loopwright.types import FinishReason, GenerateRequest, Generation

pytestmark = pytest.mark.usefixtures("quick_restarts")


class Sick(CountingEngine):
    """Answers with errors until it is started again."""

    def healthy(self) -> bool:
        return self.number > 0

    async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
        if self.healthy():
            return await super().generate(request, on_part)
        self.requests.append(request)
        raise EngineError("500: out of order", remedy="none")


class NeverWell(Sick):
    def healthy(self) -> bool:
        return False


class Misaligned(Sick):
    """The last logprob is missing, in an answer whose first part was right."""

    async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
        if self.healthy():
            return await super().generate(request, on_part)
        self.requests.append(request)
        begin, end = len(request.prompt_ids), len(request.prompt_ids) + request.sampling.max_new_tokens
        ids = tuple(range(begin, end))
        if on_part is not None:
            on_part(Generation(ids[:PART], (-0.5,) * PART, (0,) * PART, FinishReason.ABORT))
        return Generation(ids, (-0.5,) * (len(ids) - 1), (0,) * len(ids), FinishReason.LENGTH)


class Forgetful(Sick):
    """Its answer lacks tokens that it has streamed."""

    async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
        if self.healthy():
            return await super().generate(request, on_part)
        self.requests.append(request)
        first = len(request.prompt_ids)
        on_part(Generation((first, first + 1), (-0.5,) * 2, (0,) * 2, FinishReason.ABORT))
        return Generation((first,), (-0.5,), (0,), FinishReason.STOP)


async def test_an_answer_with_an_error_goes_on_elsewhere() -> None:
    sick, well = Nursery(make=NeverWell), Nursery()
    async with pool(sick, well) as controller:
        assert whole(await controller.generate(ask()))
    assert (len(sick.engines[0].requests), len(well.engines[0].requests)) == (1, 1)


async def test_a_sick_engine_is_replaced_and_no_call_fails() -> None:
    sick, well, words = Nursery(make=Sick), Nursery(), list[str]()
    async with pool(sick, well, on_death=words.append) as controller:
        for number in range(SICK_AFTER):
            assert whole(await controller.generate(ask(f"s{number}/0")))
        await until(lambda: len(sick.engines) == 2)
        assert sick.engines[0].dead.is_set()
        await until(lambda: len(controller._pool.running) == 2)
        assert whole(await controller.generate(ask("next/0")))
    assert [len(engine.requests) for engine in sick.engines] == [SICK_AFTER, 1]
    [why] = words
    assert f"{SICK_AFTER} times in a row" in why
    assert "out of order" in why


async def test_a_good_answer_in_between_makes_an_engine_well() -> None:
    class Moody(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            if request.id.startswith("bad"):
                raise EngineError("a bad day", remedy="none")
            return await super().generate(request, on_part)

    nursery = Nursery(make=Moody)
    async with pool(nursery) as controller:
        for _ in range(3):
            for number in range(SICK_AFTER - 1):
                with pytest.raises(EngineError, match="a bad day"):
                    await controller.generate(ask(f"bad{number}/0"))
            assert whole(await controller.generate(ask()))
    assert len(nursery.engines) == 1


async def test_a_single_sick_engine_is_replaced_too() -> None:
    nursery = Nursery(make=Sick)
    async with pool(nursery) as controller:
        for _ in range(SICK_AFTER):
            with pytest.raises(EngineError, match="out of order"):
                await controller.generate(ask())
        assert whole(await controller.generate(ask()))
    assert len(nursery.engines) == 2


async def test_an_engine_that_stays_sick_is_given_up_within_its_budget_and_the_others_go_on() -> None:
    sick, well = Nursery(make=NeverWell), Nursery()
    async with pool(sick, well, max_restarts=2) as controller:
        for number in range(20):
            assert whole(await controller.generate(ask(f"s{number}/0", 8)), 8)
            await asyncio.sleep(0.02 if len(controller._pool.running) < 2 else 0)
        assert len(sick.engines) == 3
        assert [member.name for member in controller._pool.running] == ["1"]


async def test_when_all_engines_stay_sick_the_reason_is_told() -> None:
    errors: list[Exception] = []
    async with pool(Nursery(make=NeverWell), Nursery(make=NeverWell), max_restarts=1) as controller:
        while not errors or isinstance(errors[-1], EngineError):
            try:
                await controller.generate(ask(f"s{len(errors)}/0"))
            except LoopwrightError as error:
                errors.append(error)
    assert isinstance(errors[-1], BudgetError)
    assert "lost 2 times without answering in between: it answered 3 times in a row" in errors[-1].message
    assert "out of order" in errors[-1].message


@pytest.mark.parametrize("make", [Misaligned, Forgetful])
async def test_a_malformed_answer_is_never_taken_and_goes_on_from_the_sound_tokens(make: type[Sick]) -> None:
    """T3: what came in sound parts stays, and nothing else of that answer."""
    sick, well = Nursery(make=make), Nursery()
    async with pool(sick, well) as controller:
        heard: list[Generation] = []
        answer = await controller.generate(ask(), heard.append)
        assert whole(answer)
        assert tuple(token for part in heard for token in part.ids) == answer.ids
    [again] = well.engines[0].requests
    assert 0 < again.sampled_before < 40
    assert len(sick.engines[0].requests) == 1


@pytest.mark.parametrize("make", [Misaligned, Forgetful])
async def test_a_malformed_answer_of_the_only_engine_is_an_engine_error(make: type[Sick]) -> None:
    async with pool(Nursery(make=make)) as controller:
        with pytest.raises(EngineError, match="an engine"):
            await controller.generate(ask())


async def test_a_request_that_nobody_can_answer_says_nothing_about_the_engines() -> None:
    class Strict(CountingEngine):
        async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
            self.requests.append(request)
            raise UnanswerableError("no such token", remedy="render anew")

    one, two = Nursery(make=Strict), Nursery(make=Strict)
    async with pool(one, two) as controller:
        for _ in range(3 * SICK_AFTER):
            with pytest.raises(UnanswerableError):
                await controller.generate(ask())
    assert sum(len(nursery.engines[0].requests) for nursery in (one, two)) == 3 * SICK_AFTER
    assert len(one.engines) == len(two.engines) == 1


async def test_a_request_is_given_up_after_a_few_engines() -> None:
    nurseries = [Nursery(make=NeverWell) for _ in range(MAX_BREAKS + 3)]
    async with pool(*nurseries) as controller:
        with pytest.raises(EngineError, match="out of order"):
            await controller.generate(ask())
    asked = [len(nursery.engines[0].requests) for nursery in nurseries]
    assert max(asked) == 1
    assert sum(asked) == MAX_BREAKS + 1


async def test_late_answers_of_a_replaced_engine_do_not_count_for_the_new_one() -> None:
    async def join(member: Supervised, engine: Any) -> None:
        raise AssertionError

    old, new = CountingEngine(), CountingEngine()
    member = Supervised("0", Nursery().launch, join, lambda words: None, lambda: None, max_restarts=3)
    error = EngineError("late", remedy="none")
    member.serve(new)
    for _ in range(SICK_AFTER):
        member.failed(old, error)
    assert member.engine is new
    for _ in range(SICK_AFTER):
        member.failed(new, error)
        member.answered(old)
    assert member.engine is None


async def test_an_engine_that_refuses_a_pause_is_replaced_and_the_others_are_paused() -> None:
    class Stubborn(CountingEngine):
        async def pause(self, mode: Any = None) -> None:
            if self.number == 0:
                raise EngineError("500: no", remedy="none")
            await super().pause(mode)

    stubborn, well = Nursery(make=Stubborn), Nursery()
    async with pool(stubborn, well) as controller:
        await controller.pause()
        assert well.engines[0]._frozen is not None
        await until(lambda: len(stubborn.engines) == 2)
        await controller.resume()
        assert whole(await controller.generate(ask()))
