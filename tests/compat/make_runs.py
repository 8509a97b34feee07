"""Make the run folders that later versions must still resume, evaluate and show.

Run it once per release, with the code of that release: `python tests/compat/make_runs.py tests/compat/0.1.0`. It
writes one archive per run. An archive holds the config file, the files that it names, the tiny model and the folder of
a run that was stopped before its last step. `base` is left out of the run folder: it is a path of this machine.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from loopwright.testing.tiny import tiny_llama
from loopwright.track.jsonl import read_jsonl

DEADLINE = 120
SMALLEST = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "initializer_range": 0.5,
}
LEFT_OUT = ("base", "lock", "rollouts.sqlite-shm", "__pycache__")

PYTHON = '''
import httpx

from loopwright import Scored, Task

TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}


def train():
    return [Task.ask(f"t{i}", f"What is {i}+{i}?", truth=2 * i) for i in range(12)]


def more():
    return [Task.ask(f"m{i}", f"What is {i}+3?", truth=i + 3) for i in range(12)]


def heldout():
    return [Task.ask(f"e{i}", f"What is {i}+1?", truth=i + 1) for i in range(3)]


async def judge(task, episode):
    if task.id == "t5":
        raise ValueError("this task has no truth")
    vowels = "".join(letter for letter in episode.answer if letter in "aeiou")
    return Scored(len(vowels) / 4, answer=vowels[:1] or None)


class AskTwice:
    async def run(self, task, policy):
        messages = list(task.messages)
        for reminder in ("Go on.", None):
            messages.append((await policy.reply(messages)).message)
            messages += [{"role": "user", "content": reminder}] if reminder else []
        return messages


async def served(task, base_url, api_key):
    """Two conversations: one with a tool on offer, and a question that is asked beside it."""
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, verify=False, timeout=60) as client:
        for body in ({"messages": list(task.messages), "tools": [TOOL]}, {"messages": [ASIDE]}):
            reply = await client.post("chat/completions", json={"model": "m", **body})
            reply.raise_for_status()


ASIDE = {"role": "user", "content": "Summarise it."}
'''


def colocated() -> dict[str, Any]:
    """Two task sets, a filter, tasks that fail, a KL term and evaluations. It is killed after its checkpoint."""
    agent = {"kind": "single_turn", "judger": "vowels"}
    return {
        **_shared(agent),
        "task_sets": [
            {"name": "sums", "weight": 2, "data": {"kind": "python", "path": "own.py:train"}, "agent": agent},
            {"name": "more", "data": {"kind": "python", "path": "own.py:more"}, "agent": agent},
        ],
        "produce": {"filter": "no_signal", "filter_budget": 100, "failure_budget": 100, "max_attempts": 2},
        "learner": {"lr": 1e-2, "kl": {"coefficient": 0.001}},
        "trainer": {"run_dir": "run", "steps": 8, "groups_per_step": 3, "checkpoint_every": 2, "keep_checkpoints": 1},
    }


def disaggregated() -> dict[str, Any]:
    """Sampling and training at the same time. It is asked to stop, so its checkpoint is that of its last step."""
    agent = {"kind": "single_turn", "judger": "vowels"}
    return {
        **_shared(agent),
        "data": {"kind": "python", "path": "own.py:more"},
        "agent": agent,
        "rollout": {"samples_per_task": 4, "max_new_tokens": 6, "engine": {"threads": 1}},
        "produce": {"kind": "async", "max_staleness": 1},
        "learner": {"lr": 1e-2},
        "trainer": {
            "kind": "disaggregated",
            "run_dir": "run",
            "steps": 8,
            "groups_per_step": 2,
            "checkpoint_every": 8,
            "keep_checkpoints": 1,
        },
    }


def agents() -> dict[str, Any]:
    """A loop of the user's, and a function that talks to the gateway and leaves two chains. It is killed."""
    judged = {"judger": "vowels"}
    return {
        **_shared({"kind": "callable", "path": "own.py:served", **judged}),
        "task_sets": [
            {
                "name": "loop",
                "data": {"kind": "python", "path": "own.py:more"},
                "agent": {"kind": "python", "path": "own.py:AskTwice", **judged},
            },
            {
                "name": "served",
                "data": {"kind": "python", "path": "own.py:more"},
                "agent": {"kind": "callable", "path": "own.py:served", **judged},
            },
        ],
        "learner": {"lr": 1e-2},
        "trainer": {"run_dir": "run", "steps": 8, "groups_per_step": 2, "checkpoint_every": 2, "keep_checkpoints": 1},
    }


RUNS = {
    "colocated": (colocated, signal.SIGKILL, 3),
    "agents": (agents, signal.SIGKILL, 3),
    "disaggregated": (disaggregated, signal.SIGTERM, 2),
}


def _shared(agent: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"path": "./model", "threads": 1},
        "judgers": {"vowels": {"kind": "native", "path": "own.py:judge", "timeout_seconds": 60}},
        "rollout": {"samples_per_task": 4, "max_new_tokens": 6},
        "eval": {"data": {"kind": "python", "path": "own.py:heldout"}, "agent": agent, "samples": 2},
        "track": {"console": False},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the archives go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, (config, number, step) in RUNS.items():
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            tiny_llama(place / "model", **SMALLEST)
            (place / "own.py").write_text(PYTHON.lstrip())
            (place / "run.yaml").write_text(yaml.safe_dump(config(), sort_keys=False))
            _train_until(place, step, number)
            _pack(place, folder / f"{name}.tar.xz")


def _train_until(place: Path, step: int, number: signal.Signals) -> None:
    """Train, and send the signal once `step` is in the metrics."""
    command = [sys.executable, "-m", "loopwright.cli", "train", "run.yaml"]
    process = subprocess.Popen(command, cwd=place)
    deadline = time.monotonic() + DEADLINE
    metrics = place / "run" / "metrics.jsonl"
    while process.poll() is None and time.monotonic() < deadline:
        if max((record["step"] for record in read_jsonl(metrics)), default=0) >= step:
            process.send_signal(number)
            break
        time.sleep(0.001)
    process.wait(timeout=DEADLINE)
    if (place / "run" / "export").exists() or not list((place / "run" / "checkpoints").glob("step-*")):
        raise SystemExit("the run was not stopped between its checkpoint and its end; try again")


def _pack(place: Path, archive: Path) -> None:
    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name in LEFT_OUT:
            return None
        if entry.isfile() and str(place).encode() in (place / entry.name).read_bytes():
            raise SystemExit(f"{entry.name} names {place}")
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for name in ("run.yaml", "own.py", "model", "run"):
            packed.add(place / name, name, filter=kept)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
