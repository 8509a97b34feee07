"""Our maths beside the recorded values of verl, TRL and torchrl; none of them is needed to run this."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loopwright.core.advantage import ADVANTAGES
from loopwright.types import ImportanceKind, KlKind, Level
from tools.parity.ours import RECORDED
from tools.parity.pairs import gap
from tools.parity.rows import EXACT, Row
from tools.parity.table import rows, table

ROOT = Path(__file__).parents[2]
EVERY = rows()

each_row = pytest.mark.parametrize("row", EVERY, ids=[f"{row.ours}-{row.peer}-{row.function}" for row in EVERY])


@each_row
def test_ours_is_theirs_once_definitions_are_the_same(row: Row) -> None:
    assert gap(row.agree()) < row.tolerance


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_no_agreement(odd: float) -> None:
    assert gap([(0.0, 0.0), (odd, 0.5)]) == math.inf
    assert gap([(0.0, 0.0), (0.5, odd)]) == math.inf


@each_row
def test_a_named_difference_of_definition_is_there_and_no_other(row: Row) -> None:
    assert bool(row.definition) == (row.apart is not None)
    if row.apart is not None:
        assert EXACT < gap(row.apart()) < math.inf


def test_everything_that_can_be_chosen_is_compared_with_some_peer() -> None:
    compared = {part for row in EVERY for part in (row.ours, *row.ours.split(", "))}
    weights = {f"importance: {kind}, {level}" for kind in ImportanceKind for level in Level}
    weights -= {f"importance: {ImportanceKind.OFF}, {level}" for level in Level}
    losses = {"ppo_clip", "dual_clip", "gspo", "cispo", "reinforce", "pass_at_k"}
    assert compared >= {*ADVANTAGES, *losses, *(f"kl: {kind}" for kind in KlKind), *weights}


@pytest.mark.parametrize("peer", RECORDED)
def test_a_recording_says_what_made_it(peer: str) -> None:
    pinned = (ROOT / "tools" / "parity" / f"requirements-{peer}.txt").read_text().splitlines()
    versions = RECORDED[peer]["versions"]
    assert f"{peer}=={versions[peer]}" in pinned
    assert set(versions) == {"python", "torch", peer}


def test_the_table_in_the_docs_is_the_one_that_is_computed() -> None:
    documented = (ROOT / "docs" / "maths.md").read_text()
    assert table() in documented, "run `python -m tools.parity.table` and put its output into docs/maths.md"
