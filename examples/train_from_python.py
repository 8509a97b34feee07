"""Training from Python: tasks, judger and advantage are functions of this script, and every step is printed.

python examples/train_from_python.py trainer.steps=12
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

import loopwright
from loopwright import Episode, Scores, Task

CONFIG: dict[str, Any] = {
    "model": {"path": "smollm2"},
    "agent": {"kind": "single_turn", "judger": "exact"},
    "rollout": {"samples_per_task": 8, "max_new_tokens": 8},
    "learner": {"lr": 1.5e-5},
    "trainer": {"run_dir": "runs/from_python", "steps": 4, "groups_per_step": 4},
}


def problems() -> list[Task]:
    return [
        Task.ask(f"{a}+{b}", f"What is {a}+{b}? Answer with the number only.", truth=a + b)
        for a in range(1, 10)
        for b in range(1, 10)
    ]


def exact(task: Task, episode: Episode) -> float:
    """1 for the right number. It runs in a thread of this process, because this script cannot be imported."""
    return 1.0 if episode.answer.strip() == str(task.truth) else 0.0


def above_the_mean(groups: Sequence[Scores]) -> list[list[float]]:
    """An advantage: every reward minus the mean of its group."""
    means = [sum(group.rewards) / len(group.rewards) for group in groups]
    return [[reward - mean for reward in group.rewards] for group, mean in zip(groups, means, strict=True)]


def main(overrides: Sequence[str] = ()) -> None:
    """Overrides are written as on the command line: `rollout.temperature=0.7`."""
    config = {
        **CONFIG,
        "data": problems,
        "judgers": {"exact": exact},
        "learner": {**CONFIG["learner"], "advantage": above_the_mean},
    }
    with loopwright.sync.open_run(config, overrides) as run:
        for step in run.steps():
            print(f"step {step.number}: reward {step.metrics['reward/mean']:.2f}")
        for rollout in islice(run.trajectories(step=run.version), 3):
            answer = rollout.episode.answer if rollout.episode else ""
            print(f"{rollout.task.id} = {answer!r}: {rollout.score}")


# Processes that a run may start import this file, so what starts the run stands behind this line.
if __name__ == "__main__":
    main(sys.argv[1:])
