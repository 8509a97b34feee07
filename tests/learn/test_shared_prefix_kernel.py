"""Attention in parts is attention with a mask: values and gradients, for any cut of a row."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from loopwright.core.packing import Packed
from loopwright.learn import layout
from loopwright.learn.attention import SharedPrefixPlan

DIM = 8


def gradients(
    plan: SharedPrefixPlan, x: list[torch.Tensor], grad: torch.Tensor, window: int | None
) -> list[torch.Tensor]:
    q, k, v = (t.clone().requires_grad_() for t in x)
    output = plan.attend(0, q, k, v, scaling=0.3, window=window)
    output.backward(grad)
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return [output.detach().transpose(1, 2), q.grad, k.grad, v.grad]


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=3),
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.sampled_from([(1, 1), (2, 1), (6, 2)]),
    st.sampled_from([None, 3, 200]),
    st.integers(0, 1000),
)
@example([40, 7], [0, 5, 5, 5, 9, 9], (6, 2), None, 0)
@example([40, 7, 40], [0], (6, 2), None, 0)
def test_parts_and_mask_agree(
    prefixes: list[int], rests: list[int], heads: tuple[int, int], window: int | None, seed: int
) -> None:
    rows = [Packed(prefix, tuple(range(len(rests))), tuple(rests)) for prefix in prefixes]
    tokens = sum(row.tokens for row in rows)
    generator = torch.Generator().manual_seed(seed)
    x = [torch.randn(1, h, tokens, DIM, generator=generator) for h in (heads[0], heads[1], heads[1])]
    grad = torch.randn(1, tokens, heads[0], DIM, generator=generator)
    before = layout.SHORT
    try:
        layout.SHORT = 0
        plan = SharedPrefixPlan(rows, torch.device("cpu"))
        parts = gradients(plan, x, grad, window)
        assert window == 3 or not plan._biases, "the mask was used"
        order = plan._layout.row_by_row()
        layout.SHORT = 10_000
        plan = SharedPrefixPlan(plan._layout.rows, torch.device("cpu"))
        masked = gradients(plan, [t[:, :, order] for t in x], grad[:, order], window)
        assert plan._biases
    finally:
        layout.SHORT = before
    for ours, exact in zip(parts, masked, strict=True):
        assert torch.allclose(ours[:, :, order], exact, atol=2e-5)


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 4), min_size=1, max_size=3)), max_size=5))
def test_every_token_of_a_layout_has_one_place(shapes: list[tuple[int, list[int]]]) -> None:
    rows = [Packed(prefix, tuple(range(len(rests))), tuple(rests)) for prefix, rests in shapes]
    before = layout.SHORT
    try:
        layout.SHORT = 8
        placed = layout.Layout(rows)
    finally:
        layout.SHORT = before
    assert sorted(placed.row_by_row()) == list(range(sum(row.tokens for row in rows)))
    taken = [
        place
        for row, (prefix, rests) in zip(rows, placed.starts(), strict=True)
        for place in (*range(prefix, prefix + row.prefix), *range(rests, rests + sum(row.rests)))
    ]
    assert sorted(taken) == list(range(sum(row.tokens for row in rows)))
