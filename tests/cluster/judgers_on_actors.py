"""Opens judgers on actors of a test's cluster, as a run does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.build.hosted_judger import judgers_on
from loopwright.config import JudgerConfig, Loaded, Objects, RunConfig
from loopwright.judgers import open_judgers
from loopwright.ports import Judger

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

PLACED = {"num_actors": 1, "num_cpus_per_actor": 0.1}


@asynccontextmanager
async def opened_judgers(
    cluster: Cluster,
    names: Iterable[str],
    configs: Mapping[str, JudgerConfig],
    base: Path,
    secrets: Mapping[str, str] | None = None,
    objects: Objects | None = None,
) -> AsyncIterator[dict[str, Judger]]:
    agent = {"kind": "single_turn", "judger": "integer_answer"}
    sections: dict[str, Any] = {
        "model": {"path": "smollm2"},
        "task_sets": [{"name": "train", "data": {"kind": "python", "path": "tasks.py:train"}, "agent": agent}],
        "trainer": {"run_dir": "run", "steps": 1, "groups_per_step": 1},
    }
    config = RunConfig.model_validate(sections).model_copy(update={"judgers": dict(configs)})
    loaded = Loaded(config, base, {}, secrets=secrets or {}, objects=objects or {})
    elsewhere = judgers_on(cluster, loaded)
    async with open_judgers(names, configs, base, loaded.secrets, loaded.objects, elsewhere) as judgers:
        yield judgers


def placed(config: JudgerConfig, **more: Any) -> JudgerConfig:
    """The judger on an actor."""
    return config.model_copy(update={**PLACED, **more})
