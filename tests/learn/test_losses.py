"""Losses against loops over tokens in plain float64 arithmetic, and gradients against finite differences."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from token_batches import Token, batch_of, chains_of, token_lists

from loopwright.learn.losses import Clip, TokenBatch, TokenLoss, cispo, gspo, ppo_clip, reinforce
from loopwright.runs.trained_tokens import LikelierSide, push_meaning
from loopwright.types import Level

BOUNDED = settings(max_examples=50)
LOW, HIGH, DUAL = 0.2, 0.3, 2.5
BOUNDS: dict[str, Any] = {"clip_low": LOW, "clip_high": HIGH}
LOSSES: dict[str, TokenLoss] = {
    "ppo_clip": partial(ppo_clip, **BOUNDS),
    "dual_clip": partial(ppo_clip, **BOUNDS, dual_clip=DUAL),
    "gspo": partial(gspo, **BOUNDS),
    "cispo": partial(cispo, **BOUNDS),
    "reinforce": reinforce,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def bounded(ratio: float) -> float:
    return min(max(ratio, 1 - LOW), 1 + HIGH)


def clipped(ratio: float, advantage: float) -> float:
    """Schulman et al. 2017, equation 7, with two bounds; as a loss."""
    return -min(ratio * advantage, bounded(ratio) * advantage)


def by_hand(name: str, tokens: list[Token]) -> list[float]:
    found = []
    for chain in chains_of(tokens):
        sequence_ratio = math.prod(math.exp(t.now) / math.exp(t.old) for t in chain) ** (1 / len(chain))
        for t in chain:
            ratio = math.exp(t.now) / math.exp(t.old)
            match name:
                case "ppo_clip":
                    found.append(clipped(ratio, t.advantage))
                case "dual_clip":
                    # Ye et al. 2020: the objective of a bad token is never below DUAL * A.
                    gain = -clipped(ratio, t.advantage)
                    found.append(-max(gain, DUAL * t.advantage) if t.advantage < 0 else -gain)
                case "gspo":
                    found.append(clipped(sequence_ratio, t.advantage))
                case "cispo":
                    found.append(-bounded(ratio) * t.advantage * t.now)
                case "reinforce":
                    found.append(-t.advantage * t.now)
    return found


@pytest.mark.parametrize("name", LOSSES)
@BOUNDED
@given(tokens=token_lists())
def test_a_loss_is_its_formula(name: str, tokens: list[Token]) -> None:
    found = LOSSES[name](batch_of(tokens))
    assert found.tolist() == pytest.approx(by_hand(name, tokens), rel=1e-9, abs=1e-12)


def off_the_corners(tokens: list[Token]) -> bool:
    """Where a bound is met there is no derivative to compare with."""
    ratios = [math.exp(t.now - t.old) for t in tokens]
    ratios += [math.exp(sum(t.now - t.old for t in chain) / len(chain)) for chain in chains_of(tokens)]
    return all(abs(ratio - corner) > 1e-3 for ratio in ratios for corner in (1 - LOW, 1 + HIGH, DUAL))


@pytest.mark.parametrize("name", ["ppo_clip", "dual_clip", "gspo", "reinforce"])
@BOUNDED
@given(tokens=token_lists(move=1.2))
def test_gradients_are_those_of_finite_differences(name: str, tokens: list[Token]) -> None:
    """Of the sum: GSPO's tokens share a ratio, and only together have its gradient."""
    assume(off_the_corners(tokens))
    batch = batch_of(tokens, requires_grad=True)

    def total(logprobs: torch.Tensor) -> torch.Tensor:
        return LOSSES[name](replace(batch, logprobs=logprobs)).sum()

    assert torch.autograd.gradcheck(total, (batch.logprobs,))


@BOUNDED
@given(tokens=token_lists())
def test_cispo_weighs_the_policy_gradient_and_never_drops_a_token(tokens: list[Token]) -> None:
    """Its weight has no gradient, so finite differences would see another function."""
    batch = batch_of(tokens, requires_grad=True)
    LOSSES["cispo"](batch).sum().backward()
    expected = [-bounded(math.exp(t.now - t.old)) * t.advantage for t in tokens]
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == pytest.approx(expected, rel=1e-9)


@BOUNDED
@given(tokens=token_lists(), scale=st.lists(st.floats(0, 3), min_size=20, max_size=20))
def test_what_multiplies_a_tokens_loss_multiplies_its_own_gradient(tokens: list[Token], scale: list[float]) -> None:
    """Also in GSPO, so that importance weights per token go where they belong."""
    plain, scaled = batch_of(tokens, requires_grad=True), batch_of(tokens, requires_grad=True)
    factors = torch.tensor(scale[: len(tokens)], dtype=torch.float64)
    LOSSES["gspo"](plain).sum().backward()
    (LOSSES["gspo"](scaled) * factors).sum().backward()
    assert plain.logprobs.grad is not None
    assert scaled.logprobs.grad is not None
    assert torch.allclose(scaled.logprobs.grad, plain.logprobs.grad * factors)


@every_loss
@BOUNDED
@given(tokens=token_lists())
def test_a_step_begins_with_the_plain_policy_gradient(loss: TokenLoss, tokens: list[Token]) -> None:
    """At the old policy every ratio is exactly 1, and all losses have one gradient."""
    fresh = [replace(token, now=token.old) for token in tokens]
    batch = batch_of(fresh, requires_grad=True)
    assert batch.ratio(Level.TOKEN).tolist() == batch.ratio(Level.SEQUENCE).tolist() == [1.0] * len(fresh)
    loss(batch).sum().backward()
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == [-token.advantage for token in fresh]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # where a step begins: the plain policy gradient
        (1.2, 1.0, -1.2, -1.2),  # inside the bounds
        (1.5, 1.0, -1.3, 0.0),  # a good token that gained enough: held
        (0.5, 1.0, -0.5, -0.5),  # a good token that lost: pulled back, unbounded
        (0.5, -1.0, 0.8, 0.0),  # a bad token that lost enough: held
        (1.5, -1.0, 1.5, 1.5),  # a bad token that gained: pushed down
        (3.0, -1.0, 2.5, 0.0),  # a bad token that gained beyond all measure: let go, by the dual clip
        (1.5, 0.0, 0.0, 0.0),  # nothing to learn
    ],
)
def test_regions_of_the_clip(ratio: float, advantage: float, loss: float, slope: float) -> None:
    batch = batch_of([Token(math.log(ratio) - 2, -2.0, -2.0, -2.0, advantage, 0)], requires_grad=True)
    value = LOSSES["dual_clip"](batch)
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.item() == pytest.approx(slope)


def test_gspo_holds_a_sequence_as_a_whole() -> None:
    """One wild token in a long chain does not clip it; the same token alone does."""
    wild = Token(-1.0, -2.0, -2.0, -2.0, 1.0, 0)
    calm = [replace(wild, now=-2.0) for _ in range(9)]
    for tokens, slope in (([wild, *calm], -math.exp(0.1)), ([wild], 0.0)):
        batch = batch_of(tokens, requires_grad=True)
        LOSSES["gspo"](batch).sum().backward()
        assert batch.logprobs.grad is not None
        assert batch.logprobs.grad.tolist() == pytest.approx([slope] * len(tokens))


@every_loss
@pytest.mark.parametrize("move", [-300.0, 300.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_policy_that_moved_beyond_all_measure_gives_no_nan(loss: TokenLoss, move: float, advantage: float) -> None:
    """In float32, where e^89 is infinite."""
    logprobs = torch.tensor([-1.0, move - 1.0], requires_grad=True)
    old, advantages = torch.tensor([-1.0, -1.0]), torch.full((2,), advantage)
    value = loss(TokenBatch(logprobs, old, old, advantages, torch.tensor([0, 1])))
    value.sum().backward()
    assert logprobs.grad is not None
    assert torch.isfinite(value).all()
    assert torch.isfinite(logprobs.grad).all()


@pytest.mark.parametrize("level", Level)
@BOUNDED
@given(tokens=token_lists())
def test_held_tokens_are_those_without_gradient(level: Level, tokens: list[Token]) -> None:
    assume(off_the_corners(tokens))
    batch = batch_of(tokens, requires_grad=True)
    LOSSES["ppo_clip" if level is Level.TOKEN else "gspo"](batch).sum().backward()
    below, above = Clip(LOW, HIGH, level).holds(batch)
    assert not (below & above).any()
    assert batch.logprobs.grad is not None
    assert torch.equal(below | above, (batch.logprobs.grad == 0) & (batch.advantages != 0))
    assert (batch.advantages[below] < 0).all()
    assert (batch.advantages[above] > 0).all()


@BOUNDED
@given(tokens=token_lists())
def test_cispo_holds_the_ratio_whatever_the_sign_of_the_advantage(tokens: list[Token]) -> None:
    """Held are the tokens whose gradient is not their own ratio times their advantage."""
    assume(off_the_corners(tokens))
    batch = batch_of(tokens, requires_grad=True)
    LOSSES["cispo"](batch).sum().backward()
    below, above = Clip(LOW, HIGH, both_ways=True).holds(batch)
    assert batch.logprobs.grad is not None
    ratio = batch.ratio(Level.TOKEN).detach()
    followed = torch.isclose(batch.logprobs.grad, -ratio * batch.advantages, rtol=1e-9)
    assert torch.equal(below | above, ~followed)
    assert (ratio[below] < 1 - LOW).all()
    assert (ratio[above] > 1 + HIGH).all()


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "cispo", "reinforce"])
@given(token_lists(), st.booleans())
@BOUNDED
def test_the_page_says_where_the_term_of_a_token_pulls(name: str, tokens: list[Token], is_first: bool) -> None:
    """With one mini-batch the old logprobs are those of the forward pass, and nothing is clipped."""
    tokens = [replace(token, now=min(token.now, -0.01)) for token in tokens]
    if is_first:
        tokens = [replace(token, old=token.now) for token in tokens]
    batch = batch_of(tokens, requires_grad=True)
    shares = LOSSES[name](batch)
    (gradient,) = torch.autograd.grad(shares.sum(), batch.logprobs)
    means = push_meaning({"loss": {"kind": name}, "kl": None, "mini_batches": 1 if is_first else 2})
    assert means is not None
    assert means.may_be_clipped is (not is_first and name in ("ppo_clip", "gspo"))
    for share, slope in zip(shares.tolist(), gradient.tolist(), strict=True):
        if share == 0 or (means.may_be_clipped and slope == 0):
            continue
        # A step goes against the gradient.
        assert (slope < 0) is (share < 0 if means.likelier is LikelierSide.BELOW else share > 0)


@pytest.mark.parametrize(
    "learner",
    [
        {},
        {"loss": {"kind": "python"}, "kl": None, "mini_batches": 1},
        {"loss": {"kind": "ppo_clip"}, "kl": {"kind": "k3", "coefficient": 0.1}, "mini_batches": 1},
        {"loss": {"kind": ["odd"]}},
        {"loss": "odd"},
    ],
)
def test_where_a_term_pulls_is_not_said_if_it_is_not_certain(learner: Any) -> None:
    assert push_meaning(learner) is None
