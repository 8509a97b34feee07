"""The divergence from a reference: each estimator against its formula, its gradient, and what it is on average."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from token_batches import Token, batch_of, token_lists

from loopwright.learn.kl import divergence
from loopwright.types import KlKind

BOUNDED = settings(max_examples=50)


def by_hand(kind: KlKind, token: Token) -> float:
    p, q = math.exp(token.now), math.exp(token.reference)
    return {KlKind.K1: math.log(p / q), KlKind.K2: math.log(p / q) ** 2 / 2, KlKind.K3: q / p - 1 - math.log(q / p)}[
        kind
    ]


@pytest.mark.parametrize("kind", KlKind)
@BOUNDED
@given(tokens=token_lists())
def test_an_estimator_is_its_formula_and_has_its_gradient(kind: KlKind, tokens: list[Token]) -> None:
    batch = batch_of(tokens, requires_grad=True)
    assert batch.reference_logprobs is not None
    reference = batch.reference_logprobs
    found = divergence(kind, batch.logprobs, reference).tolist()
    assert found == pytest.approx([by_hand(kind, token) for token in tokens], rel=1e-7, abs=1e-9)
    assert torch.autograd.gradcheck(lambda now: divergence(kind, now, reference), (batch.logprobs,))


def expected(kind: KlKind, weights: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The mean over what the policy samples, sampling itself having no gradient."""
    logprobs = torch.log_softmax(weights, dim=-1)
    return (logprobs.exp().detach() * divergence(kind, logprobs, reference)).sum()


def test_what_each_estimator_is_on_average() -> None:
    """k1 and k3 have the true value; k2 has the true gradient, k3 that of the reverse divergence, k1 none at all."""
    policy = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64), dim=-1)
    logprobs = torch.log_softmax(policy, dim=-1)
    true = (logprobs.exp() * (logprobs - reference)).sum()
    reverse = (reference.exp() * (reference - logprobs)).sum()
    (gradient,) = torch.autograd.grad(true, policy, retain_graph=True)
    (reverse_gradient,) = torch.autograd.grad(reverse, policy)
    values, gradients = {}, {}
    for kind in KlKind:
        value = expected(kind, policy, reference)
        values[kind] = value.item()
        (gradients[kind],) = torch.autograd.grad(value, policy)
    assert values[KlKind.K1] == pytest.approx(true.item())
    assert values[KlKind.K3] == pytest.approx(true.item())
    assert torch.allclose(gradients[KlKind.K1], torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(gradients[KlKind.K2], gradient)
    assert torch.allclose(gradients[KlKind.K3], reverse_gradient)


def test_a_token_that_became_all_but_impossible_gives_no_infinity() -> None:
    now = torch.tensor([-200.0], requires_grad=True)
    value = divergence(KlKind.K3, now, torch.tensor([-1.0]))
    value.sum().backward()
    assert now.grad is not None
    assert torch.isfinite(value).all()
    assert torch.isfinite(now.grad).all()
