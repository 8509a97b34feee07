"""A run that is killed at random moments loses nothing, trains nothing twice and leaves no process behind (D1, R3)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.config import load
from tools.chaos.chaos import Chaos

WriteConfig = Callable[..., Path]

# Not async, so that there are worker processes to be killed as well.
JUDGER = """
def judge(task, episode):
    return sum(letter in "aeiou" for letter in episode.answer) / 4
"""


def wreak(file: Path, kills: int, seed: int) -> None:
    (file.parent / "judger.py").write_text(JUDGER)
    chaos = Chaos(file, Path(load(file).config.trainer.run_dir), random.Random(seed))
    chaos.run(kills)


@pytest.mark.real
def test_a_run_survives_three_kills(write_config: WriteConfig) -> None:
    wreak(write_config(trainer__steps=30), kills=3, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_survives_twenty_kills(write_config: WriteConfig) -> None:
    wreak(write_config(trainer__steps=60), kills=20, seed=0)
