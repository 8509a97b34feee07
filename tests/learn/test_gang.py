"""What the driver makes of what its ranks say, do not say, and die of; without processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.errors import LearnerError, LearnerLostError, LoopwrightError, RemoteError, WeightsError
from loopwright.learn.ranks.cut import RowCost
from loopwright.learn.ranks.gang import Gang
from loopwright.learn.ranks.learner import RankedLearner
from loopwright.learn.ranks.messages import RankBeat, RankCall, RankDone, RankFailed, RankWork, WeightOffer
from loopwright.learn.ranks.remote import RemoteRank
from loopwright.models.compute import ComputeThread
from loopwright.types import TensorSpec

DEAD = ("it was killed by SIGKILL", "Killed")
FAILED = ("it ended with exit code 1", "Traceback")


class ScriptedLine:
    """A rank that says what its script returns for each call. It ends when the script returns `DEAD` or `FAILED`."""

    def __init__(self, script: Callable[[object], list[Any]]) -> None:
        self._script = script
        self._says: asyncio.Queue[Any] = asyncio.Queue()
        self._end = DEAD
        self.heard: list[object] = []

    async def send(self, value: object) -> None:
        self.heard.append(value)
        for said in self._script(value):
            self.say(said)

    def say(self, value: Any) -> None:
        self._says.put_nowait(value)

    async def receive(self) -> Any:
        said = await self._says.get()
        if said in (DEAD, FAILED):
            self._end = said
            raise EOFError
        if isinstance(said, OSError):
            raise said
        return said

    async def ended(self) -> tuple[str, str]:
        return self._end

    def last_words(self) -> str:
        return "words of the log"


@asynccontextmanager
async def gang_of(*scripts: Callable[[object], list[Any]], silence: float = 30.0) -> AsyncIterator[Gang]:
    ranks = [RemoteRank(number, ScriptedLine(script)) for number, script in enumerate(scripts)]
    try:
        yield Gang(ranks, silence)
    finally:
        for rank in ranks:
            await rank.close()


def answers(*said: Any) -> Callable[[object], list[Any]]:
    return lambda _: list(said)


def asked(gang: Gang) -> Any:
    return gang.ask(RankWork.STEP, [(number,) for number in range(len(gang))])


async def test_each_rank_gets_its_own_arguments_and_answers_come_in_order() -> None:
    def echo(call: object) -> list[Any]:
        assert isinstance(call, RankCall)
        return [RankBeat(1), RankDone(call.args)]

    async with gang_of(echo, echo, echo) as gang:
        assert await asked(gang) == [(0,), (1,), (2,)]
        assert await asked(gang) == [(0,), (1,), (2,)]


async def test_what_is_known_of_ranks_is_what_they_have_said() -> None:
    begun = time.time()
    async with gang_of(answers(RankDone()), answers(RankDone()), answers(DEAD)) as gang:
        assert gang.standing() == [{"rank": rank, "alive": True, "heard": None} for rank in range(3)]
        with pytest.raises(LearnerLostError):
            await asked(gang)
        told = gang.standing()
    assert [one["alive"] for one in told] == [True, True, False]
    assert told[0]["heard"] >= begun
    assert told[2]["heard"] is None, "that it is asked is nothing that it says"


async def test_the_rank_that_was_killed_is_named_and_not_the_one_that_failed_of_it() -> None:
    broken = RankFailed("RuntimeError: Connection closed by peer")
    async with gang_of(answers(broken), answers(DEAD)) as gang:
        with pytest.raises(LearnerLostError) as caught:
            await asked(gang)
        assert caught.value.facts == {"rank": 1, "cause": DEAD[0], "last_words": DEAD[1]}
        with pytest.raises(LearnerLostError) as again:
            await asked(gang)
        assert again.value is caught.value, "there are no ranks to ask any more"


async def test_an_error_that_means_something_arrives_as_it_is() -> None:
    error: LoopwrightError = LearnerError("the loss is NaN", remedy="lower learner.lr")
    async with gang_of(answers(RankDone()), answers(RankFailed("", error))) as gang:
        with pytest.raises(LearnerError, match="the loss is NaN") as caught:
            await asked(gang)
        assert caught.value is error


async def test_an_error_that_means_something_is_the_cause_although_all_ranks_end_of_it() -> None:
    """A rank ends when it has said what went wrong, and those that wait for it in a collective lose their peer. A busy
    driver may hear of all that at once."""
    error: LoopwrightError = LearnerError("the loss is NaN", remedy="lower learner.lr")
    of_peer = RankFailed("RuntimeError: Connection closed by peer")
    for first, second in [(of_peer, RankFailed("", error)), (RankFailed("", error), of_peer)]:
        for end in (FAILED, DEAD):
            async with gang_of(answers(first, end), answers(second, FAILED)) as gang:
                with pytest.raises(LearnerError, match="the loss is NaN") as caught:
                    await asked(gang)
                assert caught.value is error


async def test_weights_that_cannot_be_received_are_told_at_once() -> None:
    async with gang_of(answers(OSError("No space left on device")), answers()) as gang:
        with pytest.raises(WeightsError, match=r"rank 0 .* No space left on device"):
            await asyncio.wait_for(asked(gang), 5)


async def test_what_nobody_has_foreseen_is_no_loss_unless_another_rank_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loopwright.learn.ranks.gang.SETTLE_SECONDS", 0.05)
    raised = RankFailed("", RemoteError("rank 1 raised ZeroDivisionError", remedy="mend it", trace=""))
    of_others = RankFailed("RuntimeError: gloo: Connection closed by peer")
    for first in (answers(), answers(of_others), answers(of_others, FAILED)):
        for second in (answers(raised), answers(raised, FAILED)):
            async with gang_of(first, second) as gang:
                with pytest.raises(RemoteError, match=r"rank 1 raised ZeroDivisionError"):
                    await asked(gang)
    async with gang_of(answers(DEAD), answers(raised, FAILED)) as gang:
        with pytest.raises(LearnerLostError, match=r"rank 0 .* SIGKILL"):
            await asked(gang)


async def test_ranks_that_lose_each_other_although_none_has_ended_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.learn.ranks.gang.SETTLE_SECONDS", 0.05)
    of_others = RankFailed("RuntimeError: gloo: Connection reset by peer")
    async with gang_of(answers(), answers(of_others)) as gang:
        with pytest.raises(LearnerLostError, match=r"rank 1 .* Connection reset"):
            await asked(gang)


@pytest.mark.parametrize("number", [0, 1])
async def test_the_rank_that_says_nothing_is_named_when_all_wait_for_it(number: int) -> None:
    lines = [ScriptedLine(answers()), ScriptedLine(answers())]
    ranks = [RemoteRank(one, line) for one, line in enumerate(lines)]
    gang = Gang(ranks, 0.4)

    async def beat() -> None:
        while True:
            lines[1 - number].say(RankBeat(0))
            await asyncio.sleep(0.02)

    beating = asyncio.create_task(beat())
    with pytest.raises(LearnerLostError, match=r"it has said nothing for 0.4 s") as caught:
        await asyncio.wait_for(asked(gang), 5)
    assert caught.value.facts["rank"] == number
    assert caught.value.facts["last_words"] == "words of the log"
    beating.cancel()
    for rank in ranks:
        await rank.close()


async def test_ranks_that_beat_and_do_nothing_are_lost_too_and_ranks_that_work_are_not() -> None:
    lines = [ScriptedLine(answers()), ScriptedLine(answers())]
    ranks = [RemoteRank(one, line) for one, line in enumerate(lines)]
    gang, progress, count = Gang(ranks, 0.4), True, 0

    async def beat() -> None:
        nonlocal count
        while True:
            count += progress
            for line in lines:
                line.say(RankBeat(count))
            await asyncio.sleep(0.02)

    beating, working = asyncio.create_task(beat()), asyncio.create_task(asked(gang))
    await asyncio.sleep(1.0)
    assert not working.done()
    progress = False
    with pytest.raises(LearnerLostError, match=r"it has done nothing for 0.4 s"):
        await asyncio.wait_for(working, 5)
    beating.cancel()
    for rank in ranks:
        await rank.close()


async def test_weights_are_taken_one_bucket_after_the_other() -> None:
    offers = [WeightOffer(names=("a",)), WeightOffer(names=("b",))]
    taken: list[tuple[str, ...]] = []
    async with gang_of(answers(*offers, RankDone()), answers(RankDone())) as gang:

        async def take(offer: WeightOffer) -> None:
            taken.append(offer.names)

        await gang.ask(RankWork.PUBLISH, [(), ()], take)
    assert taken == [("a",), ("b",)]


async def test_a_call_that_is_cancelled_leaves_no_answer_for_the_next() -> None:
    async with gang_of(answers(), answers(RankDone())) as gang:
        left = asyncio.create_task(asked(gang))
        await asyncio.sleep(0.01)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        with pytest.raises(LearnerError, match="left in the middle of a call"):
            await asked(gang)


async def test_ranks_outlive_weights_that_nobody_could_take(tmp_path: Path) -> None:
    """The folder for weights may be full. What the ranks have learned can be saved then, as by one process."""

    class FullSink:
        def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
            raise WeightsError("No space left on device", remedy="free some space")

        def take(self, bucket: Mapping[str, Any]) -> None:
            raise AssertionError("nothing follows what was refused")

    offers: list[Any] = [
        WeightOffer(tensors={}),
        WeightOffer(bucket=tmp_path / "bucket"),
        RankDone(),
    ]

    def first(told: object) -> list[Any]:
        match told:
            case RankCall(RankWork.SAVE):
                return [RankDone()]
            case _:
                return [offers.pop(0)]

    with ComputeThread() as compute:
        async with gang_of(first, answers(RankDone())) as gang:
            tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
            no_recipe: Any = None
            learner = RankedLearner(gang, no_recipe, RowCost(1.0, 1.0), tokenizer, compute, "")
            with pytest.raises(WeightsError, match="No space left"):
                await asyncio.wait_for(learner.publish(FullSink()), 10)
            assert not offers, "rank 0 has offered all of them"
            await asyncio.wait_for(learner.save(tmp_path), 10)
