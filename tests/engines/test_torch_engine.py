"""The embedded engine as callers meet it: concurrent, interrupted, paused, reloaded, broken and closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_model import PlainModel, Sample, put

from loopwright.core.partial_answer import joined
from loopwright.engines.torch import engine as torch_engine
from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.cache import Row
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.torch.forward import Forward
from loopwright.engines.torch.sequence import Sequence
from loopwright.errors import EngineError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.testing.weight_file import weight_file
from loopwright.types import NOTHING_YET, FinishReason, GenerateRequest, Generation, PauseMode, Sampling
from loopwright.types.sampling import PART_TOKENS

PROMPT = tuple(range(3, 20))
OTHER = (9, 8, 7)
MANY = 200
"""Enough tokens to be met in the middle, also on a busy machine."""
LONG = 900
"""More than any test waits for, and still within the context."""


@pytest.fixture
async def engine(loaded: LoadedModel) -> AsyncIterator[TorchEngine]:
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=4) as engine:
            yield engine
        assert not engine._callers


def ask(id: str = "r", prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(id, prompt, Sampling(**({"max_new_tokens": 12} | sampling)))


def start(engine: TorchEngine, *requests: GenerateRequest) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(engine.generate(request)) for request in requests]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def live(engine: TorchEngine) -> dict[str, Sequence]:
    return {sequence.request.id: sequence for sequence in list(engine._batch.live)}


async def under_way(engine: TorchEngine, *ids: str, tokens: int = 5) -> None:
    """Wait until the named requests have sampled some tokens."""
    await until(lambda: all(id in live(engine) and len(live(engine)[id].ids) >= tokens for id in ids))


def sampled(engine: TorchEngine) -> int:
    return sum(len(sequence.ids) for sequence in list(engine._callers))


async def stands_still(engine: TorchEngine) -> bool:
    before = sampled(engine)
    await asyncio.sleep(0.03)
    return sampled(engine) == before


def check(plain: PlainModel, *pairs: tuple[GenerateRequest, Generation]) -> None:
    plain.check(Sample(request, g.ids, g.logprobs, g.versions) for request, g in pairs)


# Generating.


async def test_many_callers_at_once_each_get_their_own_exact_tokens(engine: TorchEngine, plain: PlainModel) -> None:
    requests = [
        ask(str(i), (PROMPT, OTHER)[i % 2], temperature=(0.0, 0.7, 1.0)[i % 3], max_new_tokens=3 + i, seed=i)
        for i in range(15)
    ]
    generations = await asyncio.gather(*start(engine, *requests))
    assert [len(generation.ids) for generation in generations] == [3 + i for i in range(15)]
    assert {generation.finish for generation in generations} == {FinishReason.LENGTH}
    check(plain, *zip(requests, generations, strict=True))


async def test_callers_of_one_turn_of_the_event_loop_start_together(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = EngineBatch.step

    def counted(batch: EngineBatch, *, admit: bool = True) -> list[Sequence]:
        steps.append(len(batch.waiting) + len(batch.live))
        return step(batch, admit=admit)

    monkeypatch.setattr(EngineBatch, "step", counted)
    await asyncio.gather(*start(engine, *(ask(str(i), (i + 3, 4), max_new_tokens=3) for i in range(4))))
    assert steps == [4, 4, 4]


async def test_a_call_takes_effect_behind_requests_that_were_made_before_it(engine: TorchEngine) -> None:
    task = asyncio.create_task(engine.generate(ask(max_new_tokens=LONG)))
    await asyncio.sleep(0)
    await engine.abort("r")
    assert (await task).finish is FinishReason.ABORT


async def test_a_stop_token_and_a_stop_string_end_a_request(engine: TorchEngine, loaded: LoadedModel) -> None:
    free = await engine.generate(ask(max_new_tokens=20))
    by_token = await engine.generate(ask(max_new_tokens=20, stop_token_ids=(free.ids[7],)))
    first = free.ids.index(free.ids[7]) + 1
    assert (by_token.ids, by_token.finish) == (free.ids[:first], FinishReason.STOP)
    word = loaded.tokenizer.decode(free.ids[4:7])
    by_string = await engine.generate(ask(max_new_tokens=20, stop=(word,)))
    assert by_string.finish is FinishReason.STOP
    assert word in loaded.tokenizer.decode(by_string.ids)
    assert by_string.ids == free.ids[: len(by_string.ids)]
    assert len(by_string.ids) <= 7


async def test_a_prompt_that_fills_the_context_ends_by_length_without_tokens(
    engine: TorchEngine, loaded: LoadedModel
) -> None:
    full = await engine.generate(ask(prompt=(5,) * loaded.max_context))
    assert full == Generation((), (), (), FinishReason.LENGTH)


@pytest.mark.parametrize("prompt", [(), (-1,), (3, 10**6)])
async def test_a_prompt_that_cannot_be_one_is_refused(engine: TorchEngine, prompt: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match="non-empty list of ids in 0") as raised:
        await engine.generate(ask("the-culprit", prompt))
    assert "the-culprit" in raised.value.message
    assert "tokenizer" in raised.value.remedy


# Leaving early.


async def test_cancelling_a_call_frees_its_row_and_lets_the_others_finish(
    engine: TorchEngine, plain: PlainModel
) -> None:
    others = [ask("a", max_new_tokens=MANY), ask("b", OTHER, max_new_tokens=MANY)]
    gone, *tasks = start(engine, ask("gone", OTHER, max_new_tokens=LONG), *others)
    await under_way(engine, "gone", "a", "b")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await until(lambda: "gone" not in live(engine))
    check(plain, *zip(others, await asyncio.gather(*tasks), strict=True))
    assert not engine._callers
    await engine.load(1)  # The last ones hold their rows until something happens.
    forward = engine._batch._forward
    assert not [*forward._own.arenas, *forward._whole.arenas, *forward._prompts.rows.arenas]


async def test_a_call_that_is_cancelled_at_once_never_starts(engine: TorchEngine) -> None:
    await engine.pause(PauseMode.KEEP)
    [gone] = start(engine, ask("gone", max_new_tokens=LONG))
    await asyncio.sleep(0)
    gone.cancel()
    await engine.resume()
    await until(lambda: not engine._callers)
    assert len((await engine.generate(ask())).ids) == 12


async def test_abort_returns_what_was_sampled(engine: TorchEngine, plain: PlainModel) -> None:
    request = ask("long", max_new_tokens=LONG)
    [task] = start(engine, request)
    await under_way(engine, "long")
    await engine.abort("nobody")
    await engine.abort("long")
    partial = await task
    assert partial.finish is FinishReason.ABORT
    assert 5 <= len(partial.ids) < LONG
    check(plain, (request, partial))
    assert engine._batch.idle


async def test_abort_of_a_request_that_waits_returns_no_tokens(engine: TorchEngine) -> None:
    running = start(engine, *(ask(str(i), max_new_tokens=LONG, seed=i) for i in range(4)))
    [waiting] = start(engine, ask("waiting"))
    await under_way(engine, "0", "3")
    await engine.abort("waiting")
    assert await waiting == Generation((), (), (), FinishReason.ABORT)
    assert not any(task.done() for task in running)
    for i in range(4):
        await engine.abort(str(i))
    await asyncio.gather(*running)


# Pausing.


async def test_drain_lets_the_running_end_and_the_others_wait(engine: TorchEngine, plain: PlainModel) -> None:
    first = [ask(str(i), max_new_tokens=MANY, seed=i) for i in range(4)]
    queued = ask("queued", OTHER)
    tasks = start(engine, *first, queued)
    await under_way(engine, "0", "3")
    await engine.pause(PauseMode.DRAIN)
    late = start(engine, ask("late"))[0]
    assert await stands_still(engine)
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True] * 4 + [False]
    assert not late.done()
    await engine.resume()
    generations = await asyncio.gather(*tasks)
    assert [len(generation.ids) for generation in generations] == [MANY] * 4 + [12]
    check(plain, *zip([*first, queued], generations, strict=True))
    assert (await late).finish is FinishReason.LENGTH


async def test_pause_by_abort_returns_the_running_and_the_waiting(engine: TorchEngine, plain: PlainModel) -> None:
    first = [ask(str(i), max_new_tokens=LONG, seed=i) for i in range(4)]
    tasks = start(engine, *first, ask("queued", OTHER))
    await under_way(engine, "0", "3")
    await engine.pause(PauseMode.ABORT)
    *aborted, waited = await asyncio.gather(*tasks)
    assert {generation.finish for generation in aborted} == {FinishReason.ABORT}
    assert all(5 <= len(generation.ids) < LONG for generation in aborted)
    check(plain, *zip(first, aborted, strict=True))
    assert waited == NOTHING_YET
    assert await stands_still(engine)
    await engine.resume()


@pytest.mark.parametrize("at_a_time", [1, 16, PART_TOKENS])
async def test_tokens_are_shown_while_they_are_sampled_each_once(
    engine: TorchEngine, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_engine, "SILENCE_SECONDS", float("inf"))
    parts: list[Generation] = []
    whole = await engine.generate(replace(ask(max_new_tokens=MANY), part_tokens=at_a_time), parts.append)
    shown = NOTHING_YET
    for part in parts:
        shown = joined([shown, part])
    assert {len(part.ids) for part in parts} == {at_a_time}
    assert len(parts) >= 3
    assert 0 <= len(whole.ids) - len(shown.ids) <= at_a_time
    for name in ("ids", "logprobs", "versions"):
        assert getattr(whole, name)[: len(shown.ids)] == getattr(shown, name)


async def test_a_slow_model_tells_of_its_tokens_before_there_are_many(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_engine, "SILENCE_SECONDS", 0.0)
    parts: list[Generation] = []
    await engine.generate(ask(max_new_tokens=8), parts.append)
    assert {len(part.ids) for part in parts} == {1}


async def test_keep_freezes_at_a_token_boundary_and_changes_nothing(engine: TorchEngine) -> None:
    undisturbed = await engine.generate(ask(max_new_tokens=MANY))
    [task] = start(engine, ask("kept", max_new_tokens=MANY))
    await under_way(engine, "kept")
    await engine.pause(PauseMode.KEEP)
    assert await stands_still(engine)
    assert not task.done()
    await engine.resume()
    assert (await task).ids == undisturbed.ids


async def test_a_resume_overtakes_a_pause_that_still_drains(engine: TorchEngine) -> None:
    [task] = start(engine, ask("long", max_new_tokens=LONG))
    await under_way(engine, "long")
    pausing = asyncio.create_task(engine.pause(PauseMode.DRAIN))
    await until(lambda: engine._paused is PauseMode.DRAIN)
    await engine.resume()
    async with asyncio.timeout(5):
        await pausing
    assert not task.done()
    await engine.abort("long")
    await task


# New weights.


async def test_weights_that_changed_in_place_reach_frozen_requests_exactly(
    engine: TorchEngine, loaded: LoadedModel, plain: PlainModel
) -> None:
    requests = [ask(str(i), (PROMPT, OTHER)[i % 2], max_new_tokens=MANY, seed=i) for i in range(5)]
    tasks = start(engine, *requests)
    for version in (1, 2):
        await under_way(engine, "0", "1", "2", "3", tokens=10 * version)
        await engine.pause(PauseMode.KEEP)
        put(loaded.model, plain.versions[version])
        await engine.load(version)
        assert engine.version == version
        assert await stands_still(engine)
        await engine.resume()
    generations = await asyncio.gather(*tasks)
    assert all(set(generation.versions) == {0, 1, 2} for generation in generations[:4])
    check(plain, *zip(requests, generations, strict=True))


async def test_weights_of_a_file_are_copied_between_two_tokens(
    engine: TorchEngine, plain: PlainModel, tmp_path: Path
) -> None:
    request = ask("live", max_new_tokens=MANY)
    [task] = start(engine, request)
    await under_way(engine, "live", tokens=10)
    await engine.load(1, weight_file(plain.versions[1], tmp_path / "w"))
    generation = await task
    assert generation.versions == tuple(sorted(generation.versions))
    assert set(generation.versions) == {0, 1}
    check(plain, (request, generation))


@pytest.mark.parametrize("fault", ["missing", "misshapen"])
async def test_weights_that_do_not_fit_change_nothing(
    engine: TorchEngine, plain: PlainModel, fault: str, tmp_path: Path
) -> None:
    weights = dict(plain.versions[1])
    name = "model.norm.weight"
    weights = {**weights, name: weights[name][:3]} if fault == "misshapen" else {**weights}
    if fault == "missing":
        del weights[name]
    with pytest.raises(EngineError, match=name):
        await engine.load(1, weight_file(weights, tmp_path / "w"))
    assert engine.version == 0
    request = ask()
    check(plain, (request, await engine.generate(request)))


async def test_a_load_that_fails_takes_its_live_requests_with_it(
    engine: TorchEngine, plain: PlainModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their keys are gone; tokens from half a cache would look like any others."""
    [task] = start(engine, ask("live", max_new_tokens=LONG))
    await under_way(engine, "live")
    await engine.pause(PauseMode.KEEP)
    with monkeypatch.context() as broken:
        broken.setattr(Forward, "_run", out_of_memory)
        with pytest.raises(EngineError, match="out of memory"):
            await engine.load(1, weight_file(plain.versions[1], tmp_path / "w"))
    with pytest.raises(EngineError, match="out of memory"):
        await task
    await engine.resume()
    await engine.load(1, weight_file(plain.versions[1], tmp_path / "w"))
    request = ask()
    check(plain, (request, await engine.generate(request)))


# Lockstep.


async def test_lockstep_waits_for_all_and_makes_the_last_bit_independent_of_arrival(engine: TorchEngine) -> None:
    requests = [ask(str(i), (PROMPT, OTHER)[i % 2], max_new_tokens=20, seed=i) for i in range(4)]
    results = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        engine.expect(4)
        tasks = {i: start(engine, requests[i])[0] for i in order[:3]}
        await until(lambda: len(engine._callers) == 3)
        assert await stands_still(engine)
        assert sampled(engine) == 0
        tasks[order[3]] = start(engine, requests[order[3]])[0]
        results.append([await tasks[i] for i in range(4)])
    assert results[0] == results[1] == results[2]


async def test_lockstep_stops_when_a_caller_has_left_until_fewer_are_expected(engine: TorchEngine) -> None:
    engine.expect(2)
    short, long = start(engine, ask("short", max_new_tokens=3), ask("long", max_new_tokens=9, seed=1))
    await short
    assert await stands_still(engine)
    assert not long.done()
    engine.expect(1)
    assert len((await long).ids) == 9


# Faults.


def out_of_memory(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("where", [(EngineBatch, "step"), (EngineBatch, "_sample"), (Forward, "_run")])
async def test_a_failing_step_fails_every_request_and_the_engine_goes_on(
    engine: TorchEngine, plain: PlainModel, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    tasks = start(engine, *(ask(str(i), (PROMPT, OTHER)[i % 2], max_new_tokens=LONG, seed=i) for i in range(6)))
    await under_way(engine, "0", "3")
    with monkeypatch.context() as broken:
        broken.setattr(*where, out_of_memory)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, EngineError) for outcome in outcomes)
    assert "out of memory" in str(outcomes[0])
    assert "max_batch" in str(outcomes[0])
    requests = [ask(str(i), (PROMPT, OTHER)[i % 2], seed=i) for i in range(6)]
    check(plain, *zip(requests, await asyncio.gather(*start(engine, *requests)), strict=True))


async def test_a_request_that_cannot_be_taken_fails_alone(engine: TorchEngine, plain: PlainModel) -> None:
    unhashable = replace(ask("odd"), prompt_ids=list(PROMPT))  # type: ignore[arg-type]
    requests = [ask("before"), unhashable, ask("after")]
    async with asyncio.timeout(10):
        first, odd, last = await asyncio.gather(*start(engine, *requests), return_exceptions=True)
    assert isinstance(odd, EngineError)
    assert isinstance(first, Generation)
    assert isinstance(last, Generation)
    check(plain, (requests[0], first), (requests[2], last))


async def test_a_prompt_that_fails_beside_live_ones_leaves_nobody_waiting(
    engine: TorchEngine, plain: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows were added for the new prompts, and the forward pass that should have filled them never came."""
    [old] = start(engine, ask("old", max_new_tokens=LONG))
    await under_way(engine, "old")
    await engine.pause(PauseMode.KEEP)
    new = start(engine, ask("new", OTHER), ask("newer", OTHER[:2]))
    await until(lambda: len(engine._callers) == 3)
    with monkeypatch.context() as broken:
        broken.setattr(Forward, "_run", out_of_memory)
        await engine.resume()
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(old, *new, return_exceptions=True)
    assert all(isinstance(outcome, EngineError) for outcome in outcomes)
    request = ask(prompt=OTHER)
    check(plain, (request, await engine.generate(request)))


async def test_an_abort_that_fails_leaves_nobody_waiting(
    loaded: LoadedModel, plain: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeping the keys of what was aborted needs memory. By then the request has left the batch: no step ends it."""
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=4, cache_tokens=LONG) as engine:
            tasks = start(engine, ask("one", max_new_tokens=LONG), ask("two", OTHER, max_new_tokens=LONG))
            await under_way(engine, "one", "two")
            with monkeypatch.context() as broken:
                broken.setattr(Row, "copy", out_of_memory)
                with pytest.raises(EngineError, match="out of memory"):
                    await engine.pause(PauseMode.ABORT)
            async with asyncio.timeout(5):
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, EngineError) for outcome in outcomes)
            await engine.resume()
            request = ask()
            check(plain, (request, await engine.generate(request)))


async def test_weights_without_sense_fail_loudly_and_better_ones_heal(
    engine: TorchEngine, plain: PlainModel, tmp_path: Path
) -> None:
    nan = {name: torch.full_like(weight, float("nan")) for name, weight in plain.versions[0].items()}
    await engine.load(1, weight_file(nan, tmp_path / "nan"))
    with pytest.raises(EngineError):
        await engine.generate(ask())
    await engine.load(1, weight_file(plain.versions[1], tmp_path / "w"))
    request = ask()
    check(plain, (request, await engine.generate(request)))


# Opening and closing.


async def test_an_engine_that_is_not_open_says_so(loaded: LoadedModel) -> None:
    with ComputeThread() as compute:
        engine = TorchEngine(loaded, compute)
        for call in (engine.generate(ask()), engine.abort("x"), engine.pause(), engine.resume(), engine.load(1)):
            with pytest.raises(EngineError, match="not running") as raised:
                await call
            assert "async with" in raised.value.remedy
        async with engine:
            assert len((await engine.generate(ask())).ids) == 12
        with pytest.raises(EngineError, match="not running"):
            await engine.generate(ask())


async def test_an_event_loop_that_closes_just_now_keeps_no_news_from_others(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, heard = asyncio.new_event_loop(), asyncio.Event()
    closing.close()
    monkeypatch.setattr(closing, "is_closed", lambda: False)  # It was not, a moment ago.

    def tell() -> None:
        engine._announce(closing, heard.clear)
        engine._announce(loop, heard.set)
        engine._hand_over()

    loop = asyncio.get_running_loop()
    await engine._compute.run(tell)
    async with asyncio.timeout(5):
        await heard.wait()


async def test_leaving_fails_what_is_still_running(loaded: LoadedModel) -> None:
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=1) as engine:
            tasks = start(engine, ask("live", max_new_tokens=LONG), ask("waiting"))
            await under_way(engine, "live")
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, EngineError) and "closed" in outcome.message for outcome in outcomes)
