"""Attention of prompts, of new ones and of ones that continue a cached beginning, on a device that is not the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated_gpu import DEVICE, Gpu
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from loopwright.models.plans import Chunk, ChunkPlan

HEADS, KV_HEADS, DIM, PAST = 6, 2, 8, 11


class Kernels(TorchFunctionMode):
    """Records what torch's attention is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            query, key = args[:2]
            self.asked.append((query.shape[1], key.shape[1], kwargs.get("enable_gqa", False)))
        return func(*args, **kwargs)


class Before:
    """A cached beginning."""

    past = PAST

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self._held = key, value

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (torch.cat(pair, dim=2) for pair in zip(self._held, (key, value), strict=True))
        return keys, values


def attended(device: str, dtype: torch.dtype, window: int | None) -> torch.Tensor:
    """Two new prompts of one length, one of another, and one that continues a cached beginning."""
    generator = torch.Generator().manual_seed(0)

    def made(heads: int, tokens: int) -> torch.Tensor:
        return torch.randn(1, heads, tokens, DIM, generator=generator).to(dtype).to(device)

    query, key, value = made(HEADS, 30), made(KV_HEADS, 30), made(KV_HEADS, 30)
    before = Before(made(KV_HEADS, PAST), made(KV_HEADS, PAST))
    plan = ChunkPlan([Chunk(0, 7), Chunk(7, 14), Chunk(14, 19), Chunk(19, 30, before)])
    return plan.attend(0, query, key, value, scaling=0.3, window=window)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_heads_are_not_grouped_on_a_gpu(dtype: torch.dtype, allowed: float, window: int | None) -> None:
    """With grouped heads and a mask, or in float32, CUDA only has the kernel that holds all scores."""
    on_cpu, kernels = attended("cpu", dtype, window), Kernels()
    with Gpu(), kernels:
        there = attended(DEVICE, dtype, window).to("cpu")
    assert kernels.asked == [(HEADS, HEADS, False)] * 3
    torch.testing.assert_close(there, on_cpu, atol=allowed, rtol=0)


def test_the_cpu_keeps_its_kernels() -> None:
    with Kernels() as kernels:
        attended("cpu", torch.float32, None)
    assert kernels.asked == [(HEADS, KV_HEADS, True)] * 2, "what continues a prompt takes the kernel with a mask itself"
