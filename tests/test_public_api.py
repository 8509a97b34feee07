"""`__all__` is the truth, and importing is light."""

from __future__ import annotations

import ast
import importlib
import inspect
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
PUBLIC = ("loopwright", "loopwright.learn", "loopwright.sync")
HEAVY = {"torch", "transformers", "ray", "vllm", "safetensors", "tokenizers"}

FROZEN = {
    "AgentLoop",
    "AgentServer",
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
    "Run",
    "Scored",
    "Scores",
    "Step",
    "Task",
    "TaskResult",
    "TaskSource",
    "TokenChain",
    "__version__",
    "open_run",
    "sync",
    "teaches_nothing",
}
"""What users import. A name is added or removed here on purpose, with a line in the changelog."""

ON_DEMAND = {"AgentServer", "Run", "Step", "open_run", "sync"}
"""Those that are imported when they are asked for."""


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
    assert public_names(loopwright) == FROZEN - {"__version__"} - ON_DEMAND
    assert all(getattr(loopwright, name) for name in ON_DEMAND)
    assert not hasattr(loopwright, "opne_run")


SIGNATURE = (
    "(config: 'ConfigLike', overrides: 'Mapping[str, Any] | Sequence[str]' = (), *, "
    "base: 'str | os.PathLike[str] | None' = None, fresh: 'bool' = False, allow_config_change: 'bool' = False, "
    "env: 'Mapping[str, str] | None' = None, cache: 'str | os.PathLike[str] | None' = None)"
)


def test_both_doors_take_what_we_promise() -> None:
    for door in (loopwright.open_run, loopwright.sync.open_run):
        assert str(inspect.signature(door)).partition(" -> ")[0] == SIGNATURE


def test_both_runs_do_what_we_promise() -> None:
    promised = {"config", "evaluate", "is_finished", "path", "roll_out", "step", "steps", "stop", "train"}
    promised |= {"trajectories", "version"}
    assert {name for name in dir(loopwright.sync.SyncRun) if not name.startswith("_")} == promised
    assert promised | {"close"} <= set(dir(loopwright.Run))


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
        "import loopwright; loopwright.open_run, loopwright.Step",
        "import loopwright; loopwright.AgentServer",
        "import loopwright.sync",
        "import loopwright.cli.app",
        "import loopwright.config, loopwright.core, loopwright.ports, loopwright.types, loopwright.testing",
    ],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    """`loopwright check` and `config` live in the second of these, and answer in under a second."""
    assert heavy_after(statement) == set()


def test_the_probe_sees_what_is_loaded() -> None:
    assert "safetensors" in heavy_after("import safetensors")
