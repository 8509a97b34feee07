"""A whole run in miniature: a random tiny model, real engine, real learner, real storage."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import loopwright.build.lineage
from loopwright.testing.tiny import tiny_llama

TASKS = """
from loopwright import Task

def train():
    return [Task.ask(f"t{i}", f"What is {i}+{i}?", truth=2 * i) for i in range(12)]

def heldout():
    return [Task.ask(f"e{i}", f"What is {i}+1?", truth=i + 1) for i in range(5)]
"""

# Random weights never give the right sum; what they can learn is to use certain letters. It is async because a function
# that is not runs in a process of its own, which takes a second to start.
JUDGER = """
async def judge(task, episode):
    return sum(letter in "aeiou" for letter in episode.answer) / 4
"""

WriteConfig = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def little_collections() -> Iterator[None]:
    """A run begins with a search for garbage in all that the process holds. Here that is every library which any test
    imports, and takes longer than the run."""
    little = SimpleNamespace(collect=partial(gc.collect, 0), freeze=gc.freeze, unfreeze=gc.unfreeze)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loopwright.build.lineage, "gc", little)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", initializer_range=0.3)


@pytest.fixture(scope="session")
def write_in(tiny_model: Path) -> WriteConfig:
    """Writes `run.yaml` and the files that it names into a folder; keywords are dotted settings with `__` for dots."""

    def write(folder: Path, **changes: Any) -> Path:
        (folder / "tasks.py").write_text(TASKS)
        (folder / "judger.py").write_text(JUDGER)
        agent = {"kind": "single_turn", "judger": "vowels"}
        config: dict[str, Any] = {
            "model": {"path": str(tiny_model), "threads": 1},
            "data": {"kind": "python", "path": "tasks.py:train"},
            "agent": dict(agent),
            "judgers": {"vowels": {"kind": "native", "path": "judger.py:judge", "timeout_seconds": 60}},
            "rollout": {"samples_per_task": 4, "max_new_tokens": 8},
            "learner": {"lr": 1e-2},
            "trainer": {
                "run_dir": str(folder / "run"),
                "steps": 3,
                "groups_per_step": 3,
                "checkpoint_every": 2,
            },
            "eval": {"data": {"kind": "python", "path": "tasks.py:heldout"}, "agent": dict(agent)},
            "track": {"console": False},
        }
        for dotted, value in changes.items():
            *path, last = dotted.split("__")
            section = config
            for name in path:
                section = section.setdefault(name, {})
            section[last] = value
        file = folder / "run.yaml"
        file.write_text(yaml.safe_dump(config))
        return file

    return write


@pytest.fixture
def write_config(tmp_path: Path, write_in: WriteConfig) -> WriteConfig:
    """The same, in the test's own folder."""
    return partial(write_in, tmp_path)
