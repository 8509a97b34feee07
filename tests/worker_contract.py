"""What the port of rollout workers promises. Each placement runs this suite: subclass `WorkerContract`, and give it a
`house`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from worker_world import ANSWER, LONG, World, until

from loopwright.core.chains import turns_of
from loopwright.ports import PauseMode
from loopwright.types import Failed, FailureCause, Rollout, Scored, StopReason, Unscored


def failure(made: Rollout) -> tuple[FailureCause, str]:
    assert isinstance(made.reward, Failed), made.reward
    return made.reward.cause, made.reward.error


async def ended(run: asyncio.Task[Rollout]) -> Rollout:
    async with asyncio.timeout(30):
        return await run


class WorkerContract:
    """`house` is open for all tests of a class, because actors take seconds to start."""

    async def test_an_agent_that_is_answered_gives_the_tokens_as_they_were_sampled(self, house: World) -> None:
        request = house.request("own", "answered")
        made = await house.worker.run(request)
        assert (made.key, made.task, made.reward) == (request.key, request.task, Unscored())
        assert made.episode is not None
        assert (made.episode.answer, made.episode.stop) == (ANSWER, StopReason.DONE)
        (chain,) = made.episode.chains
        asked = house.engine.requests[-1]
        assert chain.ids[~chain.mask].tolist() == list(asked.prompt_ids)
        assert chain.logprobs[chain.mask].tolist() == [-0.5] * (len(ANSWER) + 1)
        assert set(chain.versions[chain.mask].tolist()) == {house.controller.version}
        house.worker.stored(request.split, request.key)

    async def test_an_agent_that_raises_is_a_failure_of_the_agent_with_its_line(self, house: World) -> None:
        made = await house.worker.run(house.request("own", "raises"))
        assert failure(made) == (FailureCause.AGENT, "ValueError")
        assert isinstance(made.reward, Failed)
        assert "agents.py" in made.reward.detail
        assert "no idea" in made.reward.detail

    async def test_values_of_the_agents_own_classes_arrive_as_they_are_stored(self, house: World) -> None:
        """Texts, numbers and dicts of classes that only the process of the agent has."""
        request = house.request("own", "own classes")
        made = await house.worker.run(request)
        assert made.reward == Scored(1.0, {"a": 2.0}, "b")
        assert made.episode is not None
        last = made.episode.messages[-1]
        assert last == {"role": "assistant", "content": "mine", "notes": [{"at": 3}]}
        assert {type(one) for one in (last, last["notes"][0])} == {dict}
        assert [type(one) for one in (last["content"], last["notes"][0]["at"], made.reward.answer)] == [str, int, str]
        assert made.task is request.task

    @pytest.mark.parametrize("task", ["own object", "own reward", "no number"])
    async def test_what_cannot_be_stored_is_a_failure_of_the_agent(self, house: World, task: str) -> None:
        made = await house.worker.run(house.request("own", task))
        assert failure(made)[0] is FailureCause.AGENT
        assert isinstance(made.reward, Failed)
        assert f"task '{task}'" in made.reward.detail

    async def test_an_agent_out_of_time_is_graded_by_what_it_did(self, house: World) -> None:
        made = await house.worker.run(house.request("own", "waits", seconds=0.5))
        assert made.episode is not None
        assert (made.reward, made.episode.stop) == (Unscored(), StopReason.BUDGET)
        never = await house.worker.run(house.request("own", "silent", seconds=0.3))
        await house.began("silent")
        assert failure(never) == (FailureCause.INFRA, "Timeout")

    async def test_the_agents_clock_stands_still_while_the_engines_are_held(self, house: World) -> None:
        await house.controller.pause(PauseMode.DRAIN)
        try:
            run = asyncio.create_task(house.worker.run(house.request("own", "held", seconds=1.0)))
            await house.began("held")
            await asyncio.sleep(1.6)
            assert not run.done()
        finally:
            await house.controller.resume()
        made = await ended(run)
        assert made.episode is not None
        assert made.episode.answer == ANSWER

    async def test_an_interrupted_rollout_is_partial_and_goes_on_from_its_tokens(self, house: World) -> None:
        request, asked = house.request("own", "interrupted", "Answer slowly."), len(house.engine.requests)
        run = asyncio.create_task(house.worker.run(request))
        await until(lambda: len(house.engine.requests) > asked)
        await asyncio.sleep(0.3)
        await house.controller.pause(PauseMode.ABORT)
        partial = await ended(run)
        await house.controller.resume()
        assert partial.is_partial
        assert partial.episode is not None
        (before,) = partial.episode.chains
        assert 0 < before.sampled < len(LONG)
        whole = await house.worker.run(replace(request, resume_from=partial))
        assert whole.episode is not None
        (chain,) = whole.episode.chains
        assert whole.episode.answer == LONG
        assert chain.ids[: len(before.ids)].tolist() == before.ids.tolist()

    async def test_an_engine_that_fails_is_infrastructure(self, house: World) -> None:
        made = await house.worker.run(house.request("own", "broken", "Please break."))
        assert failure(made)[0] is FailureCause.INFRA

    async def test_a_prompt_that_cannot_fit_is_a_failure_of_the_task(self, house: World) -> None:
        made = await house.worker.run(house.request("own", "long", "word " * 2000))
        assert failure(made) == (FailureCause.TASK, "ContextError")

    async def test_cancelling_the_call_ends_the_agent(self, house: World) -> None:
        run = asyncio.create_task(house.worker.run(house.request("own", "silent")))
        await house.began("silent")
        (house.folder / "ended-silent").unlink(missing_ok=True)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(run)
        await until((house.folder / "ended-silent").is_file, seconds=2)

    async def test_cancelling_the_call_ends_its_request_to_the_engine(self, house: World) -> None:
        asked = len(house.engine.requests)
        run = asyncio.create_task(house.worker.run(house.request("own", "gone", "Answer slowly.")))
        await until(lambda: len(house.engine.requests) > asked)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended(run)
        async with asyncio.timeout(2):
            await house.controller.pause(PauseMode.DRAIN)
        await house.controller.resume()

    async def test_a_served_agent_is_recorded_and_its_chains_are_chosen(self, house: World) -> None:
        request = house.request("served", "serve")
        made = await house.worker.run(request)
        assert made.reward == Unscored(), made.reward
        assert made.episode is not None
        assert [(len(turns_of(chain)), chain.trained) for chain in made.episode.chains] == [(1, False), (2, True)]
        assert made.episode.drift is not None
        house.worker.stored(request.split, request.key)

    async def test_a_served_agent_out_of_time_is_graded_by_what_it_did(self, house: World) -> None:
        made = await house.worker.run(house.request("served", "waits", seconds=2.0))
        assert made.episode is not None
        assert (made.reward, made.episode.stop) == (Unscored(), StopReason.BUDGET)

    async def test_a_program_is_run_and_brings_its_reward(self, house: World) -> None:
        request = house.request("program", "program", "Say hello.")
        made = await house.worker.run(request)
        assert isinstance(made.reward, Scored), made.reward
        assert made.reward.value == len(ANSWER)
        assert made.episode is not None
        assert len(made.episode.chains) == 1
        house.worker.stored(request.split, request.key)

    async def test_rollouts_overlap(self, house: World) -> None:
        requests = [house.request("own", "many") for _ in range(20)]
        made = await asyncio.gather(*(house.worker.run(request) for request in requests))
        assert [one.key for one in made] == [request.key for request in requests]

    async def test_a_rollout_in_flight_is_heard_of_and_begins_with_its_own_attempt(self, house: World) -> None:
        request = house.request("own", "waits", seconds=2.0)
        assert house.worker.first_attempt(request.split, request.key) == 0
        run = asyncio.create_task(house.worker.run(request))
        await house.began("waits")
        assert house.worker.silent_seconds(request.key) < 2.0
        await ended(run)
