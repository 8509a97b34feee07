"""`tools/compare`: what rounds of two trees say, and when they are asked once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.models.openmp import SPINS
from tools.compare.contests import FEWEST, MOST, _goes_on
from tools.compare.deadline import Deadline
from tools.compare.trees import Tree
from tools.compare.verdict import Comparison, Rounds, Verdict


@pytest.mark.parametrize(
    ("new", "verdict"),
    [(0.8, Verdict.NOT_SLOWER), (1.05, Verdict.NOT_SLOWER), (1.08, Verdict.DOUBTFUL), (1.2, Verdict.SLOWER)],
)
def test_the_ratio_of_medians_decides(new: float, verdict: Verdict) -> None:
    comparison = Comparison("grpo").with_rounds(Rounds((1.0, 1.0, 9.0), (new, new, 0.1)))
    assert comparison.ratio == pytest.approx(1 / new)
    assert comparison.verdict is verdict


def test_in_doubt_the_rounds_of_both_attempts_count() -> None:
    first = Comparison("grpo").with_rounds(Rounds((1.0, 1.0), (1.08, 1.08)))
    assert first.verdict is Verdict.DOUBTFUL
    assert first.with_rounds(Rounds((1.0,) * 3, (1.01,) * 3)).settled().verdict is Verdict.NOT_SLOWER
    assert first.with_rounds(Rounds((1.0, 1.0), (1.08, 1.08))).settled().verdict is Verdict.SLOWER


def test_there_are_a_few_rounds_even_without_time_and_never_too_many() -> None:
    over, long = Deadline(0), Deadline(1000)
    assert over.is_over
    assert [_goes_on(rounds, over) for rounds in (FEWEST - 1, FEWEST)] == [True, False]
    assert [_goes_on(rounds, long) for rounds in (MOST - 1, MOST)] == [True, False]
    assert not long.share(3).is_over
    assert over.share(3).is_over


def test_a_tree_runs_its_own_code_and_waits_as_it_says_itself() -> None:
    tree = Tree("old", Path("/there"), {"PYTHONPATH": "/here", "GOMP_SPINCOUNT": str(SPINS), "HOME": "/h"})
    environment = tree.environment(2)
    assert environment["PYTHONPATH"] == "/there/src:/there"
    assert "GOMP_SPINCOUNT" not in environment
    assert (environment["OMP_NUM_THREADS"], environment["HOME"]) == ("2", "/h")
    assert Tree("old", Path("/there"), {"GOMP_SPINCOUNT": "5"}).environment(2)["GOMP_SPINCOUNT"] == "5"
