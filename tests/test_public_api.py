"""`__all__` is the truth, and importing is light."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import loopwright
import loopwright.learn

ROOMS = sorted(room.name for room in pkgutil.iter_modules(loopwright.__path__, "loopwright.") if room.ispkg)
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PUBLIC = ("loopwright", "loopwright.learn")
HEAVY = {"torch", "transformers", "ray", "vllm", "safetensors", "tokenizers"}

FROZEN = {
    "AgentLoop",
    "Episode",
    "Group",
    "Judger",
    "Level",
    "LoopwrightError",
    "Message",
    "Policy",
    "RecordedChain",
    "Reply",
    "Rollout",
    "Scored",
    "Scores",
    "Task",
    "TaskResult",
    "TaskSource",
    "TokenChain",
    "__version__",
    "teaches_nothing",
}
"""What users import. A name is added or removed here on purpose, with a line in the changelog."""


def public_names(module: ModuleType) -> set[str]:
    """Names in a module that are neither private nor modules."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }


def heavy_after(statement: str) -> set[str]:
    """Heavy packages that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def test_the_public_names_are_the_ones_we_promise() -> None:
    assert set(loopwright.__all__) == FROZEN
    assert public_names(loopwright) == FROZEN - {"__version__"}


def test_the_names_that_need_torch_are_the_ones_we_promise() -> None:
    assert loopwright.learn.__all__ == ["TokenBatch"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.name)
def test_an_example_imports_public_names_only(example: Path) -> None:
    found = [node for node in ast.walk(ast.parse(example.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, alias.name) for node in found for alias in node.names if "loopwright" in str(node.module)]
    for module, name in ours:
        assert module in PUBLIC
        assert name in importlib.import_module(module).__all__


@pytest.mark.parametrize("room", ["loopwright", *ROOMS])
def test_all_is_the_truth(room: str) -> None:
    """What a room offers exists, and what it imports for others to use is in its `__all__`."""
    module = importlib.import_module(room)
    offered = list(getattr(module, "__all__", ()))
    assert all(hasattr(module, name) for name in offered)
    assert len(offered) == len(set(offered))
    if offered:
        assert public_names(module) <= set(offered)


@pytest.mark.parametrize("room", ["loopwright", *ROOMS])
def test_every_room_says_what_lives_there(room: str) -> None:
    assert importlib.import_module(room).__doc__


@pytest.mark.parametrize(
    "statement",
    [
        "import loopwright",
        "import loopwright.cli.app",
        "import loopwright.config, loopwright.core, loopwright.ports, loopwright.types, loopwright.testing",
    ],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    """`loopwright check` and `config` live in the second of these, and answer in under a second."""
    assert heavy_after(statement) == set()


def test_the_probe_sees_what_is_loaded() -> None:
    assert "safetensors" in heavy_after("import safetensors")
