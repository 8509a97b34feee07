"""Tensors of any bits, and whether two have the same."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Of random bits: NaNs of all kinds, infinities and subnormal numbers are among them."""
    size = torch.Size(shape).numel() * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(random.Random(seed).randbytes(size)), dtype=dtype).reshape(shape)


def bits(one: torch.Tensor) -> bytes:
    return one.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return {name: (t.dtype, t.shape, bits(t)) for name, t in one.items()} == {
        name: (t.dtype, t.shape, bits(t)) for name, t in other.items()
    }


@st.composite
def some_tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Any mix of types and shapes: odd sizes, empty tensors, single numbers."""
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    chosen = draw(st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=6))
    seed = draw(st.integers(0, 1000))
    return {f"layer.{i}.weight": tensor(dtype, shape, seed + i) for i, (dtype, shape) in enumerate(chosen)}
