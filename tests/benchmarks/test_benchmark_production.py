"""The benchmarks of production measure what they say, on plants small enough for a test."""

from __future__ import annotations

import pytest

from benchmarks.catalogue import find
from benchmarks.makespan import key_of
from benchmarks.production import Line, Plant, Trained
from benchmarks.workers.ours_makespan import _beside, _in_turn
from loopwright.testing import run_virtually
from loopwright.types import ProduceKind

SMALL = Plant(groups=3, samples=2, slots=6, tokens=4)
STEPS = 8


async def in_turn(learner_seconds: float) -> tuple[float, list[int]]:
    trained = await Line(SMALL, staleness=0, kind=ProduceKind.SYNC).train_in_turn(STEPS, learner_seconds)
    return trained.seconds, drawn(trained)


def drawn(trained: Trained) -> list[int]:
    return sorted(group.draw for group in trained.groups)


def test_the_synchronous_schedule_waits_for_the_longest_of_every_step_and_for_the_learner():
    seconds, draws = run_virtually(in_turn(4.0))
    assert draws == list(range(STEPS * SMALL.groups))
    waves = [range(step * SMALL.groups, (step + 1) * SMALL.groups) for step in range(STEPS)]
    longest = sum(max(max(SMALL.member_seconds(draw)) for draw in wave) for wave in waves)
    assert seconds == pytest.approx(longest + 4.0 * STEPS)


def test_production_beside_the_learner_is_between_the_ideal_and_the_synchronous_schedule():
    synchronous = run_virtually(_in_turn(SMALL, STEPS))
    case = run_virtually(_beside(SMALL, STEPS, 2, 0.0))
    assert case["ideal"] < case["makespan"] < synchronous
    assert case["slowest_groups"] == 1.0
    assert 0 < case["slowest_tokens"] <= 1


def test_the_figures_of_a_makespan_round():
    case = {
        "staleness": 4,
        "learner": 4.0,
        "makespan": 100.0,
        "ideal": 90.0,
        "slowest_groups": 1,
        "slowest_tokens": 0.9,
    }
    answer = {"seconds": 1.0, "cpu_seconds": 1.0, "in_turn_seconds": 400.0, "cases": [case]}
    figures = find("makespan").round(answer, None)
    assert figures[key_of("speedup", 4, 4.0)] == (400 + 150 * 4) / 100
    assert figures[key_of("ideal_share", 4, 4.0)] == 0.9
    assert figures[key_of("slowest_tokens", 4, 4.0)] == 0.9


def test_the_figures_of_a_manager_round():
    answer = {"seconds": 1.0, "cpu_seconds": 1.0, "cases": [10.0, 12.0], "peak_memory": 1}
    figures = find("manager").round(answer, None)
    assert figures["ms_per_group_1000"] == 4.0
    assert figures["growth"] == pytest.approx(1.2)
