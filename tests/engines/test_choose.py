"""Tokens follow the softmax, and the reported logprob is that of the whole vocabulary (T8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.engines.torch import choose as choose_module
from loopwright.engines.torch.choose import AHEAD, Chooser, uniforms
from loopwright.errors import EngineError
from loopwright.types import Sampling

HERE = torch.device("cpu")
GRID = 512
LOGITS = torch.tensor([0.3, -1.0, 2.0, -float("inf"), 0.9, 1.4, -float("inf")])


def choose(
    logits: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
) -> tuple[list[int], list[float]]:
    return Chooser(samplings, positions, HERE).choose(logits)


def drawn_over_the_unit_interval(
    monkeypatch: pytest.MonkeyPatch, logits: torch.Tensor, sampling: Sampling
) -> list[int]:
    """What each of GRID evenly spaced random numbers picks."""
    grid = (np.arange(GRID) + 0.5) / GRID
    monkeypatch.setattr(choose_module, "uniforms", lambda seeds, positions: grid[None])
    ids, _ = choose(logits.expand(GRID, -1), [sampling] * GRID, range(GRID))
    return ids


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
def test_each_id_owns_as_much_of_the_unit_interval_as_the_softmax_gives_it(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    ids = drawn_over_the_unit_interval(monkeypatch, LOGITS, Sampling(temperature=temperature))
    shares = np.bincount(ids, minlength=len(LOGITS)) / GRID
    assert np.abs(shares - (LOGITS / temperature).softmax(-1).numpy()).max() <= 1.5 / GRID


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=1), {2}),
        (Sampling(top_k=3), {2, 5, 4}),
        (Sampling(top_k=100), {0, 1, 2, 4, 5}),
        (Sampling(top_p=0.4), {2}),
        (Sampling(top_p=0.5), {2, 5}),
        (Sampling(top_p=0.9), {2, 5, 4, 0}),
        # The five shares are 0.45, 0.25, 0.15, 0.08 and 0.02; among the first three alone, 0.53, 0.29 and 0.18.
        (Sampling(top_k=3, top_p=0.75), {2, 5}),
        (Sampling(top_k=3, top_p=0.85), {2, 5, 4}),
        # The temperature comes first: it flattens the shares to 0.36, 0.26, 0.21, 0.15 and 0.08.
        (Sampling(top_p=0.5, temperature=2.0), {2, 5}),
        (Sampling(top_p=0.6, temperature=2.0), {2, 5, 4}),
    ],
)
def test_truncation_keeps_the_right_ids_in_their_right_proportions(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling, kept: set[int]
) -> None:
    ids = drawn_over_the_unit_interval(monkeypatch, LOGITS, sampling)
    assert set(ids) == kept
    inside = torch.full_like(LOGITS, -float("inf"))
    inside[list(kept)] = LOGITS[list(kept)] / sampling.temperature
    shares = np.bincount(ids, minlength=len(LOGITS)) / GRID
    assert np.abs(shares - inside.softmax(-1).numpy()).max() <= 1.5 / GRID


def test_equal_logits_are_cut_to_exactly_k(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(drawn_over_the_unit_interval(monkeypatch, torch.zeros(9), Sampling(top_k=4))) == {0, 1, 2, 3}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=2), Sampling(top_p=0.6)])
def test_the_ends_of_the_interval_pick_ids_that_have_weight(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    """The last ids have none: the number next to 1 must not fall behind the end."""
    ends = np.array([0.0, 1 - 2.0**-52])
    logits = torch.cat([torch.full((3,), -float("inf")), torch.linspace(-3, 3, 1000), torch.full((5,), -80.0)])
    monkeypatch.setattr(choose_module, "uniforms", lambda seeds, positions: ends[None])
    ids, logprobs = choose(logits.expand(2, -1), [sampling] * 2, [0, 1])
    assert all(3 <= token < 1003 for token in ids)
    assert ids[0] < ids[1]
    assert all(logprob > -20 for logprob in logprobs)


def test_a_large_vocabulary_is_searched_block_by_block_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, choose_module.SMALL + 77, generator=random)
    logits[200:, 900:] = -float("inf")
    samplings = [Sampling(seed=i) for i in range(400)]
    by_blocks = choose(logits, samplings, range(400))
    monkeypatch.setattr(choose_module, "SMALL", 10**6)
    assert by_blocks == choose(logits, samplings, range(400))


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.8, 0.1]),
    seed=st.integers(0, 2**63 - 1),
)
rows = st.lists(st.tuples(samplings, st.integers(0, 10_000), st.integers(0, 1000)), min_size=1, max_size=6)


def logits_of(seed: int) -> torch.Tensor:
    return 3 * torch.randn(50, generator=torch.Generator().manual_seed(seed))


@given(rows)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_rows_of_one_batch_do_not_know_each_other(rows: list[tuple[Sampling, int, int]]) -> None:
    logits = torch.stack([logits_of(seed) for _, _, seed in rows])
    ids, logprobs = choose(logits, [sampling for sampling, _, _ in rows], [position for _, position, _ in rows])
    for i, (sampling, position, _) in enumerate(rows):
        alone, alone_logprob = choose(logits[i : i + 1], [sampling], [position])
        assert alone == [ids[i]]
        assert alone_logprob == pytest.approx([logprobs[i]], abs=1e-6)
        untruncated = (logits[i].double() / (sampling.temperature or 1.0)).log_softmax(-1)
        assert logprobs[i] == pytest.approx(float(untruncated[ids[i]]), abs=1e-5)
        if sampling.temperature == 0 or sampling.top_k == 1:
            assert ids[i] == int(logits[i].argmax())


def test_bfloat16_logits_are_scored_in_full_precision() -> None:
    logits = logits_of(1).bfloat16()[None]
    ids, logprobs = choose(logits, [Sampling()], [3])
    assert logprobs[0] == pytest.approx(float(logits[0].double().log_softmax(-1)[ids[0]]), abs=1e-5)


def test_random_numbers_depend_on_seed_and_position_alone() -> None:
    seeds, positions = [5, 5, 6, 2**64 + 5, -1], [0, 1, 0, 0, 7]
    together = uniforms(seeds, positions)
    for ahead in range(AHEAD):
        alone = [uniforms([s], [p + ahead])[0, 0] for s, p in zip(seeds, positions, strict=True)]
        assert together[ahead].tolist() == alone
    assert len(set(together[0, :3])) == 3
    assert ((together >= 0) & (together <= 1 - 2.0**-52)).all()


def test_random_numbers_of_later_tokens_are_those_of_their_positions() -> None:
    """A chooser makes them ahead; somebody who joins later must draw the same."""
    logits = torch.stack([logits_of(1), logits_of(2)])
    samplings, start = [Sampling(seed=7), Sampling(seed=8, temperature=0.7)], [5, 40]
    chooser = Chooser(samplings, start, HERE)
    for i in range(2 * AHEAD + 3):
        assert chooser.choose(logits) == choose(logits, samplings, [p + i for p in start])


@pytest.mark.parametrize("before", [0, 3, AHEAD])
def test_those_who_stay_choose_as_before(before: int) -> None:
    samplings, start = [Sampling(seed=7), Sampling(seed=8, temperature=0.7), Sampling(temperature=0.0)], [5, 40, 9]
    logits = torch.stack([logits_of(1), logits_of(2), logits_of(3)])
    chooser = Chooser(samplings, start, HERE)
    for _ in range(before):
        chooser.choose(logits)
    stay = [2, 0]
    fewer = chooser.only(stay)
    for i in range(before, before + AHEAD + 3):
        expected = choose(logits[stay], [samplings[row] for row in stay], [start[row] + i for row in stay])
        assert fewer.choose(logits[stay]) == expected


def test_logits_that_are_not_numbers_are_an_error() -> None:
    for vocabulary, sampling in ((50, Sampling()), (5000, Sampling()), (50, Sampling(temperature=0.0))):
        logits = torch.zeros(2, vocabulary)
        logits[1, 3] = float("nan")
        with pytest.raises(EngineError, match="not numbers"):
            choose(logits, [sampling] * 2, [0, 1])


@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_random_numbers_are_uniform_and_independent_along_seeds_and_positions(along: str) -> None:
    """Neighbouring seeds and positions are what runs use; bounds are five standard deviations."""
    count = 20_000
    line, still = list(range(count)), [3] * count
    x = (uniforms(line, still) if along == "seeds" else uniforms(still, line))[0]
    assert abs(x.mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5
    tenths = np.bincount((x * 10).astype(int), minlength=10)
    assert ((tenths - count / 10) ** 2 / (count / 10)).sum() < 9 + 5 * 18**0.5
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / count**0.5
