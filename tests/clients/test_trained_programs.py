"""The examples of programs, as they are: `loopwright train` starts a real agent for each of two rollouts, and trains on
the tokens that its model sampled. The engine is scripted; everything else is real.

One member solves its task, and one does not. The rewards come from the example's verifier, which looks at the folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from clients import CACHE, NODE, PYTHON, ROOT, call_text, need, played

from loopwright.models.smollm2 import smollm2_folder

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="these programs run in a sandbox of bubblewrap"),
]

EXAMPLES = ROOT / "examples" / "programs"


def train(
    folder: Path,
    name: str,
    task: str,
    parts: Sequence[Sequence[str]] | Mapping[str, Sequence[str]],
    *,
    program: Path,
    settings: Sequence[str] = (),
    config: Path | None = None,
) -> dict[str, Any]:
    """Train one step of an example, or of `config`, on one group of two, whose members say their parts. All that is
    stored of a group is checked here; its tokens are checked in the scene."""
    need(program)
    told = played(
        "program_scene.py",
        {
            "config": str(config or EXAMPLES / name / f"{name}.yaml"),
            "folder": str(folder),
            "tokenizer": str(smollm2_folder(CACHE)),
            "path": os.pathsep.join([str(NODE), str(PYTHON), os.environ["PATH"]]),
            "task": task,
            "parts": parts,
            "settings": ["data.shuffle=false", *settings],
        },
    )
    assert told["code"] == 0, told
    assert sorted(rollout["reward"] for rollout in told["rollouts"]) == [0.0, 1.0], told
    assert [rollout["starts"] for rollout in told["rollouts"]] == [["first"]] * 2, told
    lines = parts.values() if isinstance(parts, Mapping) else parts
    assert [rollout["turns"] for rollout in told["rollouts"]] == [[len(part)] for part in lines]
    assert told["version"] == 1
    assert told["gradient"] > 0
    assert told["audit"][0] == 0, told["audit"]
    return told


def first_task(name: str) -> str:
    """The prompt of an example's first task."""
    tasks = (EXAMPLES / name / "tasks.jsonl").read_text("utf-8")
    return str(json.loads(tasks.splitlines()[0])["prompt"])


def test_mini_swe_agent(tmp_path: Path) -> None:
    mend = json.dumps({"command": "sed -i 's/(len(numbers) - 1)/max(1, len(numbers))/' average.py"})
    look = call_text("bash", '{"command":  "cat average.py"}')
    done = call_text("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')
    parts = [
        [f"Das ist der Fehler: {call_text('bash', mend)}", done],
        [f"„Ich“ sehe 🙂 nach: {look}", done],
    ]
    task = first_task("mini_swe_agent")
    told = train(tmp_path, "mini_swe_agent", task, parts, program=PYTHON / "mini")
    assert "mini-swe-agent (step 2" in told["rollouts"][0]["output"]


def test_claude_code(tmp_path: Path) -> None:
    count = json.dumps({"command": "grep -c '^[aeiou]' words.txt > answer.txt"})
    parts = [
        [f"Ich zähle „sie“: {call_text('Bash', count)}", "The number is in answer.txt."],
        [call_text("Bash", '{"command":  "echo 5 > answer\\u002etxt"}'), "It is 5 🙂, I think."],
    ]
    told = train(tmp_path, "claude_code", first_task("claude_code"), parts, program=NODE / "claude")
    assert {json.loads(rollout["output"])["result"] for rollout in told["rollouts"]} == {part[-1] for part in parts}
    assert min(told["asked"]) > 15_000


def test_codex(tmp_path: Path) -> None:
    write = json.dumps({"cmd": "echo 'for i in 1 2 3 4 5; do echo $((i * i)); done' > run.sh"})
    parts = [
        [f"Ein „Skript“: {call_text('exec_command', write)}", "run.sh prints the squares."],
        [call_text("exec_command", '{"cmd":  "echo echo 1 > run\\u002esh"}'), "It is 🙂 done."],
    ]
    told = train(tmp_path, "codex", first_task("codex"), parts, program=NODE / "codex")
    assert all("turn.completed" in rollout["output"] for rollout in told["rollouts"])


def test_langgraph(tmp_path: Path) -> None:
    task = "What is 1+2? Answer with the number only."
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "sum", "prompt": task, "truth": 3}))
    settings = [
        f"data={{kind: jsonl, path: {tmp_path / 'tasks.jsonl'}}}",
        f"agent.runner.command=[{PYTHON / 'python'}, '{{config}}/graph.py']",
    ]
    parts = [["Das „weiß“ ich 🙂.", "3"], ["It is\t3, or so.", "2"]]
    train(tmp_path, "langgraph", task, parts, program=PYTHON / "python", settings=settings)


def test_one_run_trains_the_model_behind_two_agents(tmp_path: Path) -> None:
    """One task set with two runners: Codex and mini-swe-agent work on the same task, and one step trains on both."""
    need(PYTHON / "mini")
    shutil.copytree(EXAMPLES / "codex", tmp_path / "both")
    config, mini = (
        yaml.safe_load((EXAMPLES / name / f"{name}.yaml").read_text("utf-8")) for name in ("codex", "mini_swe_agent")
    )
    del mini["agent"]["runner"]["folder"]
    config["agent"]["runners"] = [config["agent"].pop("runner"), mini["agent"]["runner"]]
    file = tmp_path / "both" / "both.yaml"
    file.write_text(yaml.safe_dump(config))
    write = json.dumps({"cmd": "echo 'for i in 1 2 3 4 5; do echo $((i * i)); done' > run.sh"})
    look = call_text("bash", '{"command":  "ls -la"}')
    done = call_text("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')
    parts = {
        "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT": [f"„Ich“ sehe 🙂 nach: {look}", done],
        "Codex": [f"Ein „Skript“: {call_text('exec_command', write)}", "run.sh prints the squares."],
    }
    told = train(
        tmp_path,
        "codex",
        first_task("codex"),
        parts,
        program=NODE / "codex",
        settings=["trainer.seed=1"],  # it gives each of the two runners one of the two rollouts
        config=file,
    )
    assert {rollout["runner"]: rollout["reward"] for rollout in told["rollouts"]} == {"codex": 1.0, "mini": 0.0}
