"""Attention segment by segment is attention with a mask: values and gradients, for any rows, windows and devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from emulated_gpu import DEVICE, Gpu, NoDeviceForgotten
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loopwright.core.packing import Packed
from loopwright.learn import bands, layout, products
from loopwright.learn.attention import SharedPrefixPlan

pytestmark = pytest.mark.usefixtures("one_thread")

DIM = 8
SAME = 1e-5
SCALING = 0.3
MASKED = 256
"""How many tokens a row may have and be masked. Not the code's own limit, which may be what is wrong."""


def packed_row(prefix: int, rests: Sequence[int]) -> Packed:
    return Packed(prefix, tuple(range(len(rests))), tuple(rests))


def order_of(rows: Sequence[Packed], placed: layout.Layout) -> list[int]:
    """The positions of the tokens, row by row."""
    return [
        place
        for row, (prefix, rests) in zip(rows, placed.starts(), strict=True)
        for place in (*range(prefix, prefix + row.prefix), *range(rests, rests + row.tokens - row.prefix))
    ]


def dense(rows: Sequence[Packed], x: Sequence[torch.Tensor], window: int | None) -> torch.Tensor:
    """Row by row, with the whole mask. Tensors are [tokens, heads, dim]."""
    outputs = []
    for q, k, v, row in zip(*(t.split([row.tokens for row in rows]) for t in x), rows, strict=True):
        segment = torch.tensor([0] * row.prefix + [i for i, rest in enumerate(row.rests, 1) for _ in range(rest)])
        places = [*range(row.prefix), *(row.prefix + i for rest in row.rests for i in range(rest))]
        behind = torch.tensor(places)[:, None] - torch.tensor(places)
        seen = ((segment == 0) | (segment[:, None] == segment)) & (behind >= 0)
        if window is not None:
            seen &= behind < window
        keys, values = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * SCALING
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def results(attend: Any, x: Sequence[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of queries, keys and values."""
    leaves = [t.detach().requires_grad_() for t in x]
    output = attend(leaves)
    output.backward(grad)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def ours(rows: Sequence[Packed], x: list[torch.Tensor], grad: torch.Tensor, window: int | None, device: str) -> Any:
    """By the plan, whose tokens are in the order of its layout; given and returned row by row."""
    plan = SharedPrefixPlan(rows, torch.device(device))
    back = torch.tensor(order_of(rows, plan._layout)).argsort()
    x, grad = [t[back].to(device) for t in x], grad[back].to(device)

    def attend(leaves: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = (leaf.transpose(0, 1)[None] for leaf in leaves)
        return plan.attend(0, q, k, v, scaling=SCALING, window=window)[0]

    with NoDeviceForgotten():
        found = results(attend, x, grad)
    return [t.cpu()[back.argsort()] for t in found]


def compare(
    rows: Sequence[Packed], heads: tuple[int, int], dims: tuple[int, int], window: int | None, seed: int, device: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(row.tokens for row in rows)
    shapes = (heads[0], dims[0]), (heads[1], dims[0]), (heads[1], dims[1])
    x = [torch.randn(tokens, *shape, generator=generator) for shape in shapes]
    grad = torch.randn(tokens, heads[0], dims[1], generator=generator)
    exact = results(lambda leaves: dense(rows, leaves, window), [t.double() for t in x], grad.double())
    with Gpu() if device == DEVICE else nullcontext():
        found = ours(rows, x, grad, window, device)
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= SAME * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@settings(max_examples=25)
@given(
    prefixes=st.lists(st.integers(0, 80), min_size=1, max_size=3),
    rests=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (2, 1), (6, 2)]),
    dims=st.sampled_from([(DIM, DIM), (DIM, 5)]),
    window=st.sampled_from([None, 1, 3, 17, 200]),
    short=st.sampled_from([0, 60, 256]),
    piece=st.sampled_from([7, 256]),
    seed=st.integers(0, 1000),
)
@example([40, 7], [0, 5, 5, 5, 9, 9], (6, 2), (DIM, DIM), None, 0, 256, 0)
@example([40, 7, 40], [0], (6, 2), (DIM, DIM), None, 0, 256, 0)
@example([40, 0], [3, 19], (6, 2), (DIM, 5), 9, 0, 4, 0)
def test_segments_and_mask_agree(
    device: str,
    prefixes: list[int],
    rests: list[int],
    heads: tuple[int, int],
    dims: tuple[int, int],
    window: int | None,
    short: int,
    piece: int,
    seed: int,
) -> None:
    rows = [row for prefix in prefixes if (row := packed_row(prefix, rests)).tokens]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SHORT", short)
        patch.setattr(bands, "QUERIES", piece)
        patch.setattr(products, "QUERIES", piece)
        if rows:
            compare(rows, heads, dims, window, seed, device)


LONG = [packed_row(700, [150, 310, 310]), packed_row(20, [30, 30]), packed_row(300, [1])]


@pytest.mark.parametrize("window", [None, 40, 300, 512, 900])
@pytest.mark.parametrize("dims", [(DIM, DIM), (DIM, 5)], ids=["equal", "other value dim"])
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_long_rows_agree_too(device: str, dims: tuple[int, int], window: int | None) -> None:
    compare(LONG, (4, 2), dims, window, 0, device)


class Largest(TorchDispatchMode):
    """Remembers the largest square that a tensor of the pass contains: the smaller of its last two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.square = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dim() >= 2:
                self.square = max(self.square, min(x.shape[-2:]))
        return result


@pytest.mark.parametrize("window", [None, 100, 600])
@pytest.mark.parametrize("dims", [(DIM, DIM), (DIM, 5)], ids=["equal", "other value dim"])
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_no_mask_of_row_by_row_is_made(device: str, dims: tuple[int, int], window: int | None) -> None:
    """Neither a mask nor scores of more than 256 by 256 tokens: memory would grow with the square of the row."""
    rows = [packed_row(600, [300, 400])]
    x = [torch.randn(1300, 2, dim) for dim in (dims[0], *dims)]
    with Gpu() if device == DEVICE else nullcontext(), Largest() as largest:
        ours(rows, x, torch.randn(1300, 2, dims[1]), window, device)
    assert largest.square <= MASKED


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 4), min_size=1, max_size=3)), max_size=5))
def test_every_token_of_a_layout_has_one_place(shapes: list[tuple[int, list[int]]]) -> None:
    rows = [packed_row(prefix, rests) for prefix, rests in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SHORT", 8)
        placed = layout.Layout(rows)
    assert sorted(order_of(rows, placed)) == list(range(sum(row.tokens for row in rows)))
