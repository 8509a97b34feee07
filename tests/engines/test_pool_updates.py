"""W1, W2: an update ends with every engine proven on the new version or lost, whatever one of them does."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from controller_pool import FILE, ask, pool, until, whole
from counting import CountingEngine, Nursery

from loopwright.errors import (
    BudgetError,
    ConfigError,
    EngineError,
    LearnerError,
    LeaseError,
    LoopwrightError,
    ModelError,
    ProofError,
    RemoteError,
    WeightsError,
)
from loopwright.types import PauseMode

pytestmark = pytest.mark.usefixtures("quick_restarts")


async def prove(name: str, engine: Any, version: int) -> None:
    """What a proof finds out: whether the engine has really loaded the version."""
    if (version, FILE) not in engine.loads:
        raise ProofError(
            f"engine {name} does not serve the weights of version {version}: it gives token 17 the logprob -1",
            remedy="none",
        )


class Refusing(CountingEngine):
    async def load(self, version: int, update: Any = None) -> None:
        if self.number == 0:
            raise WeightsError("engine full", remedy="none")
        await super().load(version, update)


class Silent(CountingEngine):
    """Answers that it has loaded the update, and changes nothing."""

    async def load(self, version: int, update: Any = None) -> None:
        if self.number:
            await super().load(version, update)
        self.version = version


class AlwaysSilent(CountingEngine):
    async def load(self, version: int, update: Any = None) -> None:
        self.version = version


class Dying(CountingEngine):
    async def load(self, version: int, update: Any = None) -> None:
        if self.number == 0:
            self.dead.set()
        await super().load(version, update)


class Hanging(CountingEngine):
    async def load(self, version: int, update: Any = None) -> None:
        if self.number == 0:
            await asyncio.Event().wait()
        await super().load(version, update)


class Slow(CountingEngine):
    """Is still loading when the other engine has failed."""

    async def load(self, version: int, update: Any = None) -> None:
        await asyncio.sleep(0.02)
        await super().load(version, update)


@pytest.mark.parametrize("make", [Refusing, Silent, Dying, Hanging])
async def test_one_bad_engine_cancels_no_other_update_and_is_replaced(make: type[CountingEngine]) -> None:
    bad, slow, words = Nursery(make=make), Nursery(make=Slow), list[str]()
    async with pool(bad, slow, prove=prove, load_seconds=0.2, on_death=words.append) as controller:
        await controller.pause(PauseMode.ABORT)
        async with asyncio.timeout(5):
            await controller.load(1, FILE)
        assert controller.version == 1
        assert slow.engines[0].loads == [(1, FILE)]
        assert all((1, FILE) in member.engine.loads for member in controller._pool.running)  # type: ignore[union-attr]
        await controller.resume()
        assert set((await controller.generate(ask())).versions) == {1}
        await until(lambda: len(controller._pool.running) == 2)
        assert [engine.loads for engine in bad.engines[1:]] == [[(1, FILE)]]
        assert [engine.requests for engine in bad.engines[:1]] == [[]], "it served nothing with other weights"
    assert len(words) == 1


@pytest.mark.parametrize("make", [Dying, Hanging])
async def test_a_single_engine_that_is_lost_in_an_update_comes_back_with_it(make: type[CountingEngine]) -> None:
    nursery = Nursery(make=make)
    async with pool(nursery, prove=prove, load_seconds=0.2) as controller:
        async with asyncio.timeout(5):
            await controller.load(1, FILE)
            assert set((await controller.generate(ask())).versions) == {1}
    assert nursery.engines[1].loads == [(1, FILE)]


async def test_a_single_engine_that_changes_nothing_ends_the_update_with_its_proof() -> None:
    nursery = Nursery(make=AlwaysSilent)
    async with pool(nursery, prove=prove) as controller:
        await controller.pause()
        with pytest.raises(ProofError, match=r"engine 0 .* version 1.* token 17"):
            await controller.load(1, FILE)
        assert controller.version == 0
        served = [member.engine for member in controller._pool.running]
        assert nursery.engines[0] not in served, "its weights are unknown"
        await until(lambda: len(nursery.engines) == 2)


async def test_an_engine_that_stays_unproven_never_serves_and_is_given_up() -> None:
    silent, well = Nursery(make=AlwaysSilent), Nursery()
    async with pool(silent, well, prove=prove, max_restarts=2) as controller:
        await controller.load(1, FILE)
        await until(lambda: controller._pool._keepers[0].done())
        assert set((await controller.generate(ask())).versions) == {1}
    assert len(silent.engines) == 3
    assert not any(engine.requests for engine in silent.engines)


async def test_an_update_that_every_engine_refuses_is_an_error_and_changes_nothing() -> None:
    one, two = Nursery(make=Refusing), Nursery(make=Refusing)
    async with pool(one, two) as controller:
        with pytest.raises(WeightsError, match="full"):
            await controller.load(1, FILE)
        assert controller.version == 0
        assert len(controller._pool.running) == 2
        assert set((await controller.generate(ask())).versions) == {0}
    assert len(one.engines) == len(two.engines) == 1


class Born(Nursery):
    """`error` is what launches raise after the first engine: so many `times`, by default always."""

    def __init__(self, error: Exception, times: float = math.inf) -> None:
        super().__init__()
        self._error = error
        self._times = times

    def launch(self) -> Any:
        if self.engines and self._times > 0:
            self._times -= 1
            raise self._error
        return super().launch()


async def test_an_engine_that_comes_back_with_another_model_is_given_up_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changed, well = Born(ModelError("it serves another model", remedy="none")), Nursery()
    async with pool(changed, well) as controller:
        await controller.load(1, FILE)
        changed.engines[0].dead.set()
        assert whole(await controller.generate(ask()))
        await until(lambda: controller._pool._keepers[0].done())
        assert "engine 0 is given up: it serves another model" in caplog.text
        assert whole(await controller.generate(ask()))
        well.engines[0].dead.set()
        assert whole(await controller.generate(ask())), "it waits for the engine that is left"


async def test_a_single_engine_that_comes_back_with_another_model_ends_the_calls_with_that_error() -> None:
    changed = Born(ModelError("it serves another model", remedy="none"))
    async with pool(changed) as controller:
        changed.engines[0].dead.set()
        with pytest.raises(ModelError, match="another model"):
            await controller.generate(ask())


@pytest.mark.parametrize("kind", [ConfigError, ModelError, RemoteError])
async def test_an_engine_that_cannot_be_started_just_then_is_started_later(kind: type[LoopwrightError]) -> None:
    """Its model is on a disk that comes back, say."""
    deaths: list[str] = []
    nursery = Born(kind("the model is not there", remedy="none"), times=1)
    async with pool(nursery, on_death=deaths.append) as controller:
        nursery.engines[0].dead.set()
        assert whole(await controller.generate(ask()))
    assert deaths == ["engine 0 says goodbye", "the model is not there"]


async def test_an_engine_that_another_run_has_taken_ends_everything() -> None:
    taken, well = Born(LeaseError("another run has it", remedy="none")), Nursery()
    async with pool(taken, well) as controller:
        await controller.pause()
        taken.engines[0].dead.set()
        with pytest.raises(LeaseError):
            await controller.generate(ask())


async def test_all_engines_of_a_pool_have_to_start() -> None:
    """The pool does not wait for ever for one that did not."""
    stillborn, well = Nursery(), Nursery()
    stillborn.stillborn = 1
    with pytest.raises(BudgetError, match="engine 0 did not start: it cannot start"):
        async with asyncio.timeout(5), pool(stillborn, well):
            pass
    assert well.engines[0].dead.is_set()


async def test_when_all_engines_are_down_every_call_gets_the_reason_and_keeps_what_it_has() -> None:
    one, two = Nursery(), Nursery()
    async with pool(one, two, max_restarts=1) as controller:
        heard: list[Any] = []
        tasks = [asyncio.create_task(controller.generate(ask(f"s{n}/0", 200), heard.append)) for n in range(4)]
        await until(lambda: all(nursery.engines[-1].counted >= 8 for nursery in (one, two)))
        for nursery in (one, two):
            nursery.stillborn = 99
            nursery.engines[-1].dead.set()
        async with asyncio.timeout(5):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, BudgetError) and "it cannot start" in error.message for error in ended)
        assert sum(len(part.ids) for part in heard) >= 8, "what arrived was told"
        with pytest.raises(BudgetError):
            await controller.generate(ask())


@pytest.mark.parametrize("error", [EngineError("its answer is malformed", remedy="x"), LearnerError("nan", remedy="x")])
async def test_an_engine_whose_proof_could_not_be_made_has_unknown_weights_and_is_lost(error: Exception) -> None:
    async def broken(name: str, engine: Any, version: int) -> None:
        if engine.number == 0:
            raise error

    nursery = Nursery()
    async with pool(nursery, prove=broken) as controller:
        with pytest.raises(ProofError, match=r"engine 0 .*version 1"):
            await controller.load(1, FILE)
        assert controller.version == 0
        assert nursery.engines[0] not in [member.engine for member in controller._pool.running]
        await until(lambda: len(controller._pool.running) == 1)
        assert set((await controller.generate(ask())).versions) == {0}


async def test_after_an_update_that_was_broken_off_no_engine_serves_that_may_have_it() -> None:
    """By a cancellation, or by a bug."""
    reached = asyncio.Event()

    async def never(name: str, engine: Any, version: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    one, two = Nursery(), Nursery(make=Slow)
    async with pool(one, two, prove=never) as controller:
        loading = asyncio.create_task(controller.load(1, FILE))
        await reached.wait()
        loading.cancel()
        await asyncio.wait({loading})
        assert loading.cancelled()
        assert not controller._pool.running
        assert set((await controller.generate(ask())).versions) == {0}


async def test_a_bug_in_the_proof_leaves_no_engine_unproven() -> None:
    async def buggy(name: str, engine: Any, version: int) -> None:
        raise KeyError("proof")

    nursery = Nursery()
    async with pool(nursery, prove=buggy) as controller:
        with pytest.raises(KeyError):
            await controller.load(1, FILE)
        assert not controller._pool.running


class RefusingOnce(CountingEngine):
    """The second engine of its place does not get its weights: say, because of the network."""

    async def load(self, version: int, update: Any = None) -> None:
        if self.number == 1:
            raise WeightsError("the weights did not reach it", remedy="none")
        await super().load(version, update)


async def test_an_engine_that_gets_no_weights_when_it_comes_back_is_started_once_more() -> None:
    nursery = Nursery(make=RefusingOnce)
    async with pool(nursery) as controller:
        await controller.load(1, FILE)
        nursery.engines[0].dead.set()
        async with asyncio.timeout(5):
            assert set((await controller.generate(ask())).versions) == {1}
    assert [engine.loads for engine in nursery.engines] == [[(1, FILE)], [], [(1, FILE)]]


async def test_nobody_is_asked_before_the_proof_also_if_the_pool_was_not_paused() -> None:
    proving, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(name: str, engine: Any, version: int) -> None:
        proving.set()
        await goes_on.wait()

    nursery = Nursery()
    async with pool(nursery, prove=slow) as controller:
        loading = asyncio.create_task(controller.load(1, FILE))
        await proving.wait()
        call = asyncio.create_task(controller.generate(ask()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert nursery.engines[0].requests == []
        goes_on.set()
        await loading
        assert set((await call).versions) == {1}
