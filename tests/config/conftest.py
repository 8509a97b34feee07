from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.config import Loaded, load
from loopwright.errors import ConfigError

MINIMAL = """
model: {path: smollm2}
data: {kind: jsonl, path: tasks.jsonl}
agent: {kind: single_turn, judger: integer_answer}
trainer: {run_dir: runs/x, steps: 10}
"""


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., Loaded]:
    """Load a config given as text; by default a minimal one."""

    def load_it(text: str = MINIMAL, *overrides: str, env: dict[str, str] | None = None, files: bool = False) -> Loaded:
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return load(file, overrides, env, files=files)

    return load_it


@pytest.fixture
def problems_of(load_text: Callable[..., Loaded]) -> Callable[..., list[str]]:
    """The problems that loading reports."""

    def collect(
        text: str = MINIMAL, *overrides: str, env: dict[str, str] | None = None, files: bool = False
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_text(text, *overrides, env=env, files=files)
        problems: list[str] = caught.value.facts["problems"]
        for problem in problems:
            assert problem in caught.value.message
            assert " -> " in problem, "every problem has a remedy"
        return problems

    return collect


@pytest.fixture
def minimal() -> str:
    return MINIMAL
