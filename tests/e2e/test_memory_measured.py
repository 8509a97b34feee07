"""The plan of `check --memory` is what runs really take, within 20 %."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from loopwright.build.memory import plan_memory
from loopwright.cli.models import models_folder
from loopwright.config import load
from loopwright.testing.tiny import tiny_llama

NEAR = 0.2
SECONDS = 1500
EMPTY = "import torch, transformers, loopwright.build, loopwright.cli.app; input()"


def anonymous(pid: int) -> int:
    """The bytes of a process that no file holds. Weights that are mapped from a file are not among them."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:")), 0)


def peak_of(command: list[str], log: Path) -> int:
    """The most that a process ever has."""
    ends, peak = time.monotonic() + SECONDS, 0
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL) as child:
        try:
            while child.poll() is None and time.monotonic() < ends:
                peak = max(peak, anonymous(child.pid))
                time.sleep(0.005)
        finally:
            child.kill()
    assert child.returncode == 0, log.read_text()[-2000:]
    return peak


def empty_process() -> int:
    with subprocess.Popen([sys.executable, "-c", EMPTY], stdin=subprocess.PIPE) as child:
        before = 0
        while (now := anonymous(child.pid)) != before or not now:
            before = now
            time.sleep(2)
        assert child.stdin is not None
        child.stdin.close()
    return before


def smollm2(folder: Path) -> dict[str, Any]:
    return {"model": {"path": "smollm2"}, "rollout": {"max_new_tokens": 16}}


def with_a_reference(folder: Path) -> dict[str, Any]:
    learner = {"kl": {"coefficient": 0.01}, "mini_batches": 2, "checkpoint_activations": True}
    return {"model": {"path": "smollm2"}, "rollout": {"max_new_tokens": 24}, "learner": learner}


def long_rows(folder: Path) -> dict[str, Any]:
    """Most of it are activations."""
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "max_position_embeddings": 4096}
    model = tiny_llama(folder / "model", **shape)
    return {
        "model": {"path": str(model)},
        "rollout": {"max_new_tokens": 200},
        "learner": {"micro_batch_tokens": 4000},
    }


def written(folder: Path, own: dict[str, Any], groups: int, question: str) -> Path:
    rows = [{"messages": [{"role": "user", "content": f"{i} {question}"}], "truth": "1"} for i in range(groups)]
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "judge.py").write_text("def judge(task, episode):\n    return hash(episode.answer) % 7 / 7\n")
    config = {
        **own,
        "data": {"kind": "jsonl", "path": "tasks.jsonl"},
        "agent": {"kind": "single_turn", "judger": "mine"},
        "judgers": {"mine": {"kind": "native", "path": "judge.py:judge"}},
        "rollout": {"samples_per_task": 8, **own["rollout"]},
        "trainer": {"run_dir": str(folder / "run"), "steps": 3, "groups_per_step": groups, "export": False},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.mark.real
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("make", "groups", "question", "tokens"),
    [
        (smollm2, 8, "+ 5 = ? Answer with the number only.", 64),
        (with_a_reference, 4, "+ 5 = ? Say why.", 64),
        (long_rows, 3, "What is 12+7? Answer with the number only. " * 120, 1800),
    ],
)
def test_the_plan_is_near_what_is_measured(tmp_path: Path, make: Any, groups: int, question: str, tokens: int) -> None:
    file = written(tmp_path, make(tmp_path), groups, question)
    (run,) = plan_memory(load(file), models_folder(), tokens).processes
    base, *parts = run.parts
    planned = run.peak - base.size
    log = tmp_path / "log"
    measured = peak_of([sys.executable, "-m", "loopwright.cli", "train", str(file)], log) - empty_process()
    print(f"{make.__name__}: planned {planned / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB")
    assert abs(planned / measured - 1) <= NEAR, [(part.name, part.size) for part in parts]
