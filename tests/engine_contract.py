"""What the engine port promises. Each adapter runs this suite: subclass `EngineContract`, and give it an `engine` and
its `update`s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loopwright.ports import Engine, PauseMode
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling, WeightUpdate

LONG = 900
PROMPT = (5, 6, 7)

Update = Callable[[int], WeightUpdate]
"""The weights of a version, as the engine takes them."""


def ask(id: str = "r", *, resumable: bool = False, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(id, PROMPT, Sampling(**({"max_new_tokens": 6} | sampling)), resumable)


async def started(engine: Engine, *requests: GenerateRequest) -> list[asyncio.Task[Generation]]:
    """Long calls that are under way: a short one that came after them has already ended."""
    *tasks, short = [asyncio.create_task(engine.generate(request)) for request in (*requests, ask("short"))]
    await short
    assert not any(task.done() for task in tasks)
    return tasks


async def ended(task: asyncio.Task[Generation]) -> Generation:
    async with asyncio.timeout(20):
        return await task


def is_whole(generation: Generation) -> bool:
    return len(generation.ids) == len(generation.logprobs) == len(generation.versions)


class EngineContract:
    """`stop_tokens` are such that one of them is sampled soon. `seconds` is how long anything may take."""

    stop_tokens: tuple[int, ...] = tuple(range(300))

    async def test_every_token_has_a_logprob_and_the_version_that_sampled_it(
        self, engine: Engine, update: Update
    ) -> None:
        before = await engine.generate(ask())
        await engine.load(3, update(3))
        after = await engine.generate(ask())
        assert engine.version == 3
        assert (before.versions, after.versions) == ((0,) * 6, (3,) * 6)
        assert is_whole(before)
        assert is_whole(after)
        assert all(logprob <= 0 for logprob in (*before.logprobs, *after.logprobs))

    @pytest.mark.parametrize("limit", [0, 1, 6])
    async def test_sampling_ends_at_its_limit(self, engine: Engine, limit: int) -> None:
        generation = await engine.generate(ask(max_new_tokens=limit))
        assert (len(generation.ids), generation.finish) == (limit, FinishReason.LENGTH)

    async def test_a_stop_condition_is_told_apart_from_a_limit(self, engine: Engine) -> None:
        generation = await engine.generate(ask(max_new_tokens=LONG + 1, stop_token_ids=self.stop_tokens))
        assert generation.finish is FinishReason.STOP
        assert is_whole(generation)

    async def test_calls_may_overlap(self, engine: Engine) -> None:
        generations = await asyncio.gather(*(engine.generate(ask(str(i), seed=i)) for i in range(20)))
        assert [len(generation.ids) for generation in generations] == [6] * 20

    async def test_abort_returns_what_was_sampled_and_ignores_strangers(self, engine: Engine) -> None:
        one, other = await started(engine, ask("one", max_new_tokens=LONG), ask("other", max_new_tokens=LONG))
        await engine.abort("nobody")
        await engine.abort("one")
        aborted = await ended(one)
        assert aborted.finish is FinishReason.ABORT
        assert len(aborted.ids) < LONG
        assert is_whole(aborted)
        assert not other.done()
        await engine.abort("other")
        await ended(other)

    async def test_an_aborted_name_can_be_used_again(self, engine: Engine) -> None:
        [task] = await started(engine, ask("again", max_new_tokens=LONG))
        await engine.abort("again")
        await ended(task)
        assert len((await engine.generate(ask("again"))).ids) == 6

    async def test_cancelling_a_call_frees_what_it_held(self, engine: Engine) -> None:
        [task] = await started(engine, ask("gone", max_new_tokens=LONG))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await engine.pause(PauseMode.DRAIN)
        await engine.resume()
        assert len((await engine.generate(ask())).ids) == 6

    async def test_drain_waits_for_the_running_and_holds_the_new_back(self, engine: Engine, update: Update) -> None:
        [running] = await started(engine, ask(max_new_tokens=200))
        await engine.pause(PauseMode.DRAIN)
        assert len((await ended(running)).ids) == 200
        held = asyncio.create_task(engine.generate(ask("held")))
        await asyncio.sleep(0.03)
        assert not held.done()
        await engine.load(4, update(4))
        await engine.resume()
        assert (await ended(held)).versions == (4,) * 6

    async def test_a_call_that_a_pause_holds_back_can_be_aborted(self, engine: Engine) -> None:
        await engine.pause(PauseMode.DRAIN)
        held = asyncio.create_task(engine.generate(ask("held")))
        async with asyncio.timeout(20):
            # An abort may overtake its request.
            while not (await asyncio.wait({held}, timeout=0.01))[0]:
                await engine.abort("held")
        assert (held.result().ids, held.result().finish) == ((), FinishReason.ABORT)
        await engine.resume()
        assert len((await engine.generate(ask("held"))).ids) == 6

    async def test_pause_by_abort_returns_those_who_can_go_on_themselves_at_once(self, engine: Engine) -> None:
        tasks = await started(engine, *(ask(str(i), max_new_tokens=LONG, seed=i, resumable=True) for i in range(3)))
        await engine.pause(PauseMode.ABORT)
        generations = [await ended(task) for task in tasks]
        assert {generation.finish for generation in generations} == {FinishReason.ABORT}
        assert all(is_whole(generation) and len(generation.ids) < LONG for generation in generations)
        held = asyncio.create_task(engine.generate(ask("held")))
        await asyncio.sleep(0.03)
        assert not held.done()
        await engine.resume()
        assert len((await ended(held)).ids) == 6


class KeepingContract(EngineContract):
    """For engines whose requests may go on across an update."""

    async def test_a_kept_request_goes_on_under_whatever_weights_are_loaded_then(
        self, engine: Engine, update: Update
    ) -> None:
        [task] = await started(engine, ask(max_new_tokens=200))
        await engine.pause(PauseMode.KEEP)
        await engine.load(1, update(1))
        await engine.resume()
        generation = await ended(task)
        assert len(generation.ids) == 200
        assert generation.versions == tuple(sorted(generation.versions))
        assert set(generation.versions) == {0, 1}
