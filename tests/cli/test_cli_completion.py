"""The shell completes commands and settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.cli.arguments import complete_setting


def test_settings_are_completed_by_their_names() -> None:
    assert complete_setting("rollout.temp") == ["rollout.temperature="]
    assert "rollout.engine.max_batch=" in complete_setting("rollout.engine.")
    assert complete_setting("no.such") == []


def test_kinds_are_no_part_of_a_name() -> None:
    assert not [name for name in complete_setting("") if "[" in name]


@pytest.mark.parametrize(
    ("typed", "completed"), [("tr", "train\n"), ("train x.yaml rollout.temp", "rollout.temperature=\n")]
)
def test_the_installed_command_completes(typed: str, completed: str) -> None:
    words = f"loopwright {typed}"
    env = {**os.environ, "_LOOPWRIGHT_COMPLETE": "complete_bash"}
    env |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = Path(sys.executable).with_name("loopwright")
    done = subprocess.run([command], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == completed
