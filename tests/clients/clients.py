"""Plays a scene: one command-line agent, from its question to its exit, with nothing but a gateway to talk to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwright.models.smollm2 import smollm2_folder

CACHE = Path.home() / ".cache" / "loopwright" / "models"
ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".clients"
NODE = CLIENTS / "node" / "node_modules" / ".bin"
PYTHON = CLIENTS / "python" / "bin"
ALONE = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--net")


@dataclass(frozen=True)
class Outcome:
    """What a client did. All chains are checked: they hold what the engine was asked and what it sampled (T1)."""

    code: int
    out: str
    err: str
    starts: list[str]
    sampled: list[int]
    """Trainable tokens of each chain."""
    asked: list[int]
    """Tokens of each prompt that the engine received."""
    answered: list[int]
    """Tokens of each answer."""
    conversation: list[dict[str, Any]]
    """The last one, in canonical form."""


def play(
    home: Path,
    command: Sequence[str],
    *,
    task: str,
    lines: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command whose model says `lines`. $URL and $KEY in command, environment and files are the session's."""
    need(Path(command[0]))
    scene: dict[str, Any] = {
        "model": str(smollm2_folder(CACHE)),
        "command": list(command),
        "task": task,
        "lines": list(lines),
        "home": str(home),
        "files": dict(files or {}),
        "environment": {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **environment},
    }
    return Outcome(**played("client_scene.py", scene))


def need(*programs: Path) -> None:
    """Skip where nobody can be alone, and fail where a client is missing."""
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets us make no network namespace (unshare --net), and clients call home")
    for program in programs:
        if not program.exists():
            pytest.fail(f"{program} is not installed: run `make clients`")


def played(script: str, scene: Mapping[str, Any]) -> dict[str, Any]:
    """What came of a scene that a script of this folder plays in a network namespace of its own."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "gateway"), *filter(None, [os.environ.get("PYTHONPATH")])]
    played = subprocess.run(
        [*ALONE, sys.executable, str(here / script)],
        input=json.dumps(scene),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stderr
    return dict(json.loads(played.stdout.splitlines()[-1]))


def call_text(name: str, arguments: str) -> str:
    """A tool call as the model writes it, with spaces of its own."""
    return f'<tool_call>\n{{"name":  "{name}" ,"arguments": {arguments} }}\n</tool_call>'


def check_one_chain(outcome: Outcome, turns: int) -> None:
    assert outcome.starts == ["first"], outcome
    assert len(outcome.asked) == turns
    assert outcome.sampled == [sum(outcome.answered)]
