"""A run computes in its compute thread alone (docs/adr/0002).

A single small kernel in another thread is enough to make every later one slower: OpenMP keeps a pool of workers for
each thread that has ever computed, and lets all of them sleep when together they are more than the cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loopwright.build import open_run
from loopwright.config import load

HARMLESS = {"empty.memory_format", "new_empty.default", "detach.default", "expand.default", "unsqueeze.default"}
"""They write no numbers."""


class Computed(TorchDispatchMode):
    """What is computed in the thread that entered it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.kernels.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "changes", [{}, {"learner": {"kl": {"kind": "k3", "coefficient": 0.1}}}], ids=["plain", "reference"]
)
async def test_nothing_is_computed_in_the_thread_of_the_event_loop(
    write_config: Callable[..., Path], changes: dict[str, Any]
) -> None:
    file = write_config(**changes)
    with Computed() as computed:
        async with open_run(load(file), cache=file.parent, stop=asyncio.Event()) as opened:
            await opened.train()
    assert computed.kernels <= HARMLESS


def test_computing_is_noticed() -> None:
    with Computed() as computed:
        torch.zeros(3).cos()
    assert not computed.kernels <= HARMLESS
