"""An agent whose time is up is ended as a whole, at once, whatever it catches; and never for time that is not its own
(R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from house import roll_out

from loopwright.errors import OutOfTimeError
from loopwright.ports import Policy
from loopwright.testing import ScriptedEngine
from loopwright.testing.virtual_time import run_virtually
from loopwright.types import (
    Failed,
    FailureCause,
    GenerateRequest,
    Message,
    OnAgentError,
    Rollout,
    StopReason,
    Task,
    Unscored,
)

TASK = Task.ask("sum", "12+7?", truth=19)
LIMIT = 30.0

Work = Callable[[Task, Policy], Awaitable[object]]


class Agent:
    """Works, and returns what there is."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        await self.work(task, policy)
        return task.messages


def now() -> float:
    return asyncio.get_running_loop().time()


def ran(
    work: Work,
    *seconds: float,
    held: tuple[float, float] = (0.0, 0.0),
    rule: OnAgentError = "fail",
) -> tuple[Rollout, float, ScriptedEngine]:
    """A rollout whose calls take so many seconds, the last of them again and again; when it was over."""

    def takes(request: GenerateRequest) -> float:
        return seconds[min(int(request.id.rpartition("/")[2]), len(seconds) - 1)]

    engine = ScriptedEngine(lambda request: "19", seconds=takes)

    async def case() -> tuple[Rollout, float]:
        def read() -> float:
            return max(0.0, min(now(), held[1]) - held[0])

        made = await roll_out(Agent(work), engine, held=read, task=TASK, seconds=LIMIT, on_agent_error=rule)
        return made, now()

    return (*run_virtually(case()), engine)


@pytest.mark.parametrize("rule", ["fail", "grade", 0.0])
@pytest.mark.parametrize("swallow", [True, False])
def test_a_model_that_never_answers_in_time_is_infrastructure_whatever_the_agent_catches(
    rule: OnAgentError, swallow: bool
) -> None:
    async def work(task: Task, policy: Policy) -> None:
        try:
            await policy.reply(task.messages)
        except Exception:
            if not swallow:
                raise ValueError("my model is slow") from None

    made, end, _ = ran(work, 1000.0, rule=rule)
    assert isinstance(made.reward, Failed)
    assert (made.reward.cause, made.reward.error) == (FailureCause.INFRA, "Timeout")
    assert end == pytest.approx(LIMIT)


def test_a_second_call_that_takes_too_long_is_a_budget_and_graded() -> None:
    async def work(task: Task, policy: Policy) -> None:
        while True:
            with suppress(Exception):
                await policy.reply(task.messages)

    made, end, engine = ran(work, 10.0, 1000.0)
    assert isinstance(made.reward, Unscored)
    assert made.episode is not None
    assert made.episode.stop is StopReason.BUDGET
    assert end == pytest.approx(LIMIT)
    assert len(engine.requests) == 2


def test_a_tool_after_a_call_that_was_held_ends_when_its_time_is_up() -> None:
    async def work(task: Task, policy: Policy) -> None:
        await policy.reply(task.messages)
        await asyncio.sleep(1000)

    _, end, _ = ran(work, 35.0, held=(5.0, 15.0))
    assert end == pytest.approx(LIMIT + 10, rel=0.02)


def test_siblings_of_a_call_end_with_it() -> None:
    worked: list[float] = []

    async def tools() -> None:
        while True:
            await asyncio.sleep(1)
            worked.append(now())

    async def work(task: Task, policy: Policy) -> None:
        await policy.reply(task.messages)
        await asyncio.gather(policy.reply(task.messages), tools())

    made, end, _ = ran(work, 1.0, 1000.0)
    assert made.episode is not None
    assert end == pytest.approx(LIMIT)
    assert worked[-1] <= LIMIT


def test_calls_that_overlap_do_not_prolong_the_time() -> None:
    async def work(task: Task, policy: Policy) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(policy.reply(task.messages))
            await asyncio.sleep(28)
            tasks.create_task(policy.reply(task.messages))

    _, end, _ = ran(work, 29.0, 1000.0)
    assert end == pytest.approx(LIMIT, abs=0.1)


def test_a_call_beside_one_that_was_held_has_the_time_that_is_left() -> None:
    async def work(task: Task, policy: Policy) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(policy.reply(task.messages))
            await asyncio.sleep(12)
            tasks.create_task(policy.reply(task.messages))

    made, end, _ = ran(work, 25.0, 22.0, held=(1.0, 11.0))
    assert made.episode is not None
    assert made.episode.stop is StopReason.DONE
    assert end == pytest.approx(34), "12 + 22; 10 of them were held"


def test_a_call_that_the_agent_cancels_is_not_charged_for_a_hold() -> None:
    async def work(task: Task, policy: Policy) -> None:
        for _ in range(5):
            with suppress(TimeoutError):
                await asyncio.wait_for(policy.reply(task.messages), 20)
        await policy.reply(task.messages)

    made, end, _ = ran(work, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1.0, held=(0.0, 100.0))
    assert made.episode is not None
    assert made.episode.stop is StopReason.DONE
    assert end == pytest.approx(101)


def test_a_call_that_the_agent_cancels_beside_another_is_charged() -> None:
    async def work(task: Task, policy: Policy) -> None:
        while True:
            both = [asyncio.create_task(policy.reply(task.messages)) for _ in range(2)]
            _, late = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for call in late:
                call.cancel()
            await asyncio.sleep(0)

    _, end, _ = ran(work, *(5.0 if place % 2 else 1.0 for place in range(400)))
    assert end == pytest.approx(LIMIT, abs=1.0)


def test_a_limit_of_the_agents_own_is_an_error_that_it_may_catch_or_not() -> None:
    async def work(task: Task, policy: Policy) -> None:
        await policy.reply(task.messages)
        with pytest.raises(OutOfTimeError):
            await policy.reply(task.messages, seconds=2)
        assert now() == pytest.approx(3)
        await policy.reply(task.messages, seconds=2)

    made, end, _ = ran(work, 1.0, 1000.0)
    assert made.episode is not None
    assert made.episode.stop is StopReason.BUDGET
    assert end == pytest.approx(5)
