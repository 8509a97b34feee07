"""The boundary round the user's advantage and loss: whatever they do amiss is an error that names them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from made_groups import learner_of, load_tiny, simple_groups

from loopwright.core.advantage import Scores
from loopwright.errors import LearnerError
from loopwright.learn.custom import custom_advantage, custom_loss, try_loss
from loopwright.learn.losses import TokenBatch

GROUPS = [Scores((1.0, 0.0), (3, 4)), Scores((0.5,), (2,))]


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned None, which is not a list of numbers per group"),
        ([1.0, 2.0], "not a list of numbers per group"),
        ([["good", "bad"], ["?"]], "not a list of numbers per group"),
        ([[1.0, 2.0]], r"returned \[2\] numbers for groups of \[2, 1\] members"),
        ([[1.0], [2.0]], r"returned \[1, 1\] numbers for groups of \[2, 1\] members"),
        ([[1.0, float("nan")], [0.0]], "returned a number that is not finite"),
        ([[1.0, float("inf")], [0.0]], "returned a number that is not finite"),
    ],
)
def test_what_an_advantage_returns_is_checked(result: Any, words: str) -> None:
    with pytest.raises(LearnerError, match=words) as caught:
        custom_advantage("mine.py:ranks", lambda groups: result, {})(GROUPS)
    assert "'mine.py:ranks'" in caught.value.message
    assert "one finite number for each" in caught.value.remedy


def test_an_advantage_gets_its_args_and_may_return_numpy_or_torch() -> None:
    def mine(groups: list[Scores], scale: float) -> list[torch.Tensor]:
        return [torch.tensor(group.rewards) * scale for group in groups]

    assert custom_advantage("m:mine", mine, {"scale": 2.0})(GROUPS) == [[2.0, 0.0], [1.0]]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda batch: 1.0, "returned float for 4 tokens"),
        (lambda batch: batch.logprobs.sum(), r"returned \[\] for 4 tokens"),
        (lambda batch: batch.logprobs[1:], r"returned \[3\] for 4 tokens"),
        (lambda batch: batch.logprobs / 0.0, "not finite"),
        (lambda batch: batch.old_logprobs, "does not depend on batch.logprobs"),
        (broken, "raised ZeroDivisionError"),
    ],
)
def test_what_a_loss_returns_is_checked(result: Any, words: str) -> None:
    with pytest.raises(LearnerError, match=words) as caught:
        try_loss(custom_loss("mine.py:gate", result, {}), with_reference=True)
    assert "'mine.py:gate'" in caught.value.message


def test_an_advantage_that_raises_is_named_with_its_line() -> None:
    with pytest.raises(LearnerError, match=r"raised ZeroDivisionError.*test_custom\.py:\d+, in broken"):
        custom_advantage("mine.py:ranks", broken, {})(GROUPS)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_loss_that_would_end_the_process_is_named_too(llama_folder: Path, kind: type[BaseException]) -> None:
    def leaves(_: TokenBatch) -> torch.Tensor:
        raise kind("I leave")

    learner = learner_of(load_tiny(llama_folder), loss=custom_loss("mine.py:leaves", leaves, {}))
    with pytest.raises(LearnerError, match=rf"'mine\.py:leaves' raised {kind.__name__}: I leave \(test_custom\.py:\d+"):
        learner._step(simple_groups())
    with pytest.raises(LearnerError, match=r"'mine\.py:ranks' raised"):
        custom_advantage("mine.py:ranks", leaves, {})(GROUPS)


def test_a_step_with_a_broken_loss_changes_nothing(llama_folder: Path) -> None:
    loaded = load_tiny(llama_folder)
    learner = learner_of(loaded, loss=custom_loss("mine.py:gate", broken, {}))
    with pytest.raises(LearnerError, match=r"mine\.py:gate"):
        learner._step(simple_groups())
    assert learner.version == 0


def test_a_custom_loss_sees_chains_without_advantage(llama_folder: Path) -> None:
    """It may teach them something, say by an entropy bonus; ours cannot, and leave them out."""
    seen = []

    def mine(batch: TokenBatch) -> torch.Tensor:
        seen.append(batch)
        return -batch.logprobs

    equals = simple_groups(rewards=(1.0, 1.0))
    learner_of(load_tiny(llama_folder), loss=custom_loss("m:mine", mine, {}), loss_without_advantage=True)._step(equals)
    assert sum(len(batch.logprobs) for batch in seen) == 2 * (3 + 4)
    assert all(batch.sequence.tolist() == sorted(batch.sequence.tolist()) for batch in seen)
