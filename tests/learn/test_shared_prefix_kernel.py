"""Attention in parts is attention with a mask: values and gradients, for any cut of a row."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from loopwright.core.packing import Packed
from loopwright.learn import attention
from loopwright.learn.attention import SharedPrefixPlan

DIM = 8


def gradients(plan: SharedPrefixPlan, x: list[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = (t.clone().requires_grad_() for t in x)
    output = plan.attend(0, q, k, v, scaling=0.3, window=None)
    output.backward(grad)
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return [output.detach(), q.grad, k.grad, v.grad]


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.sampled_from([(1, 1), (2, 1), (6, 2)]),
    st.integers(0, 1000),
)
@example([40, 7], [0, 5, 5, 5, 9, 9], (6, 2), 0)
def test_parts_and_mask_agree(prefixes: list[int], rests: list[int], heads: tuple[int, int], seed: int) -> None:
    rows = [Packed(prefix, tuple(range(len(rests))), tuple(rests)) for prefix in prefixes]
    tokens = sum(row.tokens for row in rows)
    generator = torch.Generator().manual_seed(seed)
    x = [torch.randn(1, h, tokens, DIM, generator=generator) for h in (heads[0], heads[1], heads[1])]
    grad = torch.randn(1, tokens, heads[0], DIM, generator=generator)
    plan = SharedPrefixPlan(rows, torch.device("cpu"))
    before = attention.SHORT
    try:
        attention.SHORT = 0
        parts = gradients(plan, x, grad)
        assert not plan._biases, "the mask was used"
        attention.SHORT = 10_000
        masked = gradients(plan, x, grad)
        assert plan._biases
    finally:
        attention.SHORT = before
    for ours, exact in zip(parts, masked, strict=True):
        assert torch.allclose(ours, exact, atol=2e-5)
