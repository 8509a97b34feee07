"""What each engine did is told, with its name: when it answered, when it loaded weights, that it came back."""

from __future__ import annotations

import pytest
from controller_pool import FILE, ask, pool, start, under_way
from counting import Nursery

from loopwright.engines import engine_spans
from loopwright.engines.engine_spans import AnsweringSpans, EngineSpan


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine_spans, "time", clock)
    return clock


def answer(spans: AnsweringSpans, clock: Clock, start: float, end: float) -> None:
    clock.now = start
    spans.began()
    spans.called()
    clock.now = end
    spans.rested()


def test_calls_that_follow_one_another_are_one_span(clock: Clock) -> None:
    told: list[EngineSpan] = []
    spans = AnsweringSpans("3", told.append)
    for begin, end in ((100.0, 101.0), (101.1, 102.0), (105.0, 106.0)):
        answer(spans, clock, begin, end)
    assert [(one.start, one.seconds, one.facts["calls"]) for one in told] == [(100.0, 2.0, 2)]
    spans.flush()
    spans.flush()
    assert [(one.engine, one.name, one.start, one.seconds) for one in told[1:]] == [("3", "generate", 105.0, 1.0)]


def test_a_span_that_is_told_while_calls_run_goes_on(clock: Clock) -> None:
    told: list[EngineSpan] = []
    spans = AnsweringSpans("0", told.append)
    spans.began()
    clock.now = 104.0
    spans.flush()
    answer_end = 107.0
    clock.now = answer_end
    spans.rested()
    spans.flush()
    assert [(one.start, one.seconds) for one in told] == [(100.0, 4.0), (104.0, 3.0)]


async def test_an_engine_that_dies_and_comes_back_is_told_of(quick_restarts: None) -> None:
    nursery, told = Nursery(), list[EngineSpan]()
    async with pool(nursery, tell=told.append) as controller:
        await controller.load(7, FILE)
        [task] = start(controller, ask())
        await under_way(nursery)
        nursery.engines[0].dead.set()
        await task
        (engine,) = controller.standing()
    assert (engine["serves"], engine["version"], engine["losses"], engine["away_since"]) == (True, 7, 1, None)
    assert engine["proof"]["version"] == 7
    assert engine["last_words"]
    names = [one.name for one in told]
    assert [name for name in names if name != "generate"] == ["load", "load", "engine_back"]
    assert names.count("generate") >= 1
    assert {one.engine for one in told} == {"0"}
    back = next(one for one in told if one.name == "engine_back")
    assert back.facts["losses"] == 1
