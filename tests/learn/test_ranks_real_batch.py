"""Two ranks compute what one process computes on a batch that SmolLM2 has sampled itself, with and without adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from ranked import apart, config_of, one_process, one_process_by_modules, saved_gradients, several_ranks
from real_batch import real_groups

from loopwright.config import Loaded
from loopwright.models.smollm2 import smollm2_folder
from loopwright.types import Group

CACHE = Path.home() / ".cache/loopwright/models"
pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

STEPS, GROUPS = 5, 2
KINDS: dict[str, dict[str, Any]] = {"all weights": {"lr": 1.5e-5}, "adapters": {"lr": 3e-4, "lora": {"rank": 8}}}
TOLERANCE = 1e-5
"""Of the gradients and logprobs of the first step, in parts of their norm."""
HAND_TOLERANCE = 5e-5
"""Of gradients by hand-written layers and by the model's modules, which round at other places. Each is up to 4e-5 from
those in float64."""
LATER_TOLERANCE = 1e-4
"""Of a logprob after five steps."""


@dataclass(frozen=True)
class Learned:
    """What a learner has found: in the first step, and of a fixed text after the last."""

    gradients: dict[str, torch.Tensor]
    trained_logprobs: npt.NDArray[np.float32]
    probe: npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    return asyncio.run(real_groups(tmp_path_factory.mktemp("sampled") / "run", CACHE, STEPS * GROUPS))


async def learned(
    loaded: Loaded,
    folder: Path,
    groups: list[Group],
    opened: Callable[[Loaded, Path], AbstractAsyncContextManager[Any]],
) -> Learned:
    checkpoint = folder / opened.__name__
    checkpoint.mkdir()
    episode = groups[0].rollouts[0].episode
    assert episode is not None
    async with opened(loaded, folder) as learner:
        report = await learner.step(groups[:GROUPS])
        await learner.save(checkpoint)
        for step in range(1, STEPS):
            await learner.step(groups[step * GROUPS : (step + 1) * GROUPS])
        probe = await learner.logprobs(episode.chains[0].ids.tolist())
    chains = [chain.old_logprobs for rollout in report.rollouts for chain in rollout.chains]
    return Learned(saved_gradients(checkpoint), np.concatenate(chains), np.array(probe))


def apart_most(mine: Learned, other: Learned) -> tuple[float, str]:
    """How far apart the gradients of one weight are, and which one that is."""
    assert mine.gradients.keys() == other.gradients.keys()
    return max((apart(mine.gradients[name], gradient), name) for name, gradient in other.gradients.items())


def require_equal_logprobs(mine: Learned, other: Learned) -> None:
    difference = np.linalg.norm(mine.trained_logprobs - other.trained_logprobs)
    assert difference / np.linalg.norm(other.trained_logprobs) < TOLERANCE
    assert np.abs(mine.probe - other.probe).max() < LATER_TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
async def test_two_ranks_equal_one_process_on_a_real_batch(groups: list[Group], tmp_path: Path, kind: str) -> None:
    async def found(opened: Callable[[Loaded, Path], AbstractAsyncContextManager[Any]], ranks: int) -> Learned:
        options = {"micro_batch_tokens": 120, "stall_seconds": 600, **KINDS[kind]}
        loaded = config_of(smollm2_folder(CACHE), tmp_path, ranks=ranks, **options)
        return await learned(loaded, tmp_path, groups, opened)

    two, by_modules = await found(several_ranks, 2), await found(one_process_by_modules, 1)
    assert apart_most(two, by_modules) < (TOLERANCE, "")
    require_equal_logprobs(two, by_modules)
    if kind == "all weights":
        by_hand = await found(one_process, 1)
        assert apart_most(two, by_hand) < (HAND_TOLERANCE, "")
        require_equal_logprobs(two, by_hand)
