"""Groups that SmolLM2 has sampled itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path

from loopwright.build import roll_out
from loopwright.config import load
from loopwright.runs.kept_weights import Weights
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Group, Scored

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
REWARDS = (1.0, 0.0, 0.5, 0.2)
"""Of the members of each group: made up, because the model's own may be equal, and then they teach nothing."""


async def real_groups(folder: Path, cache: Path, count: int) -> list[Group]:
    """Groups of the example's tasks, in its prompts, answered by the embedded engine."""
    overrides = [f"rollout.samples_per_task={len(REWARDS)}", f"trainer.groups_per_step={count}", "model.device=cpu"]
    loaded = load(EXAMPLE, overrides)
    await roll_out(loaded, Weights(loaded.config.model.path, "initial"), folder, groups=count, cache=cache)
    found = sorted(StoredRun(RunFolder(folder).rollouts).rollouts(1), key=lambda rollout: rollout.key)
    groups = [(draw, tuple(members)) for draw, members in groupby(found, key=lambda rollout: rollout.key.draw)]
    return [
        Group(
            members[0].key.task_set,
            draw,
            members[0].task,
            tuple(replace(one, reward=Scored(reward)) for one, reward in zip(members, REWARDS, strict=True)),
        )
        for draw, members in groups
    ]
