"""The vLLM servers of a run: started here or on actors and kept alive, or somebody else's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from loopwright.build.devices import server_gpus
from loopwright.build.engine_actors import engine_actors, vllm_actors
from loopwright.build.sampling import LocalSamplingParts
from loopwright.build.servers import attached_launches, served_source
from loopwright.config import VllmEngineConfig
from loopwright.config.extras import require
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Launch
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.lease import LeaseHolder
from loopwright.types import TrainerKind


def vllm_launches(
    sampling: LocalSamplingParts,
    engine: VllmEngineConfig,
    folder: RunFolder,
    holder: LeaseHolder,
    labels: VersionLabels,
    env: Mapping[str, str],
) -> list[Launch]:
    require("serve")
    from loopwright.engines.vllm.engine import VllmEngine
    from loopwright.engines.vllm.leftovers import sweep
    from loopwright.engines.vllm.process import VllmServer, cores_of, vllm_process

    sleeps = sampling.config.trainer.kind is TrainerKind.COLOCATE
    if engine.urls:
        connect = partial(VllmEngine.connect, labels=labels, sleeps=sleeps)
        return attached_launches(sampling, engine, holder, connect)
    server = VllmServer(
        executable=_executable(engine.executable, sampling.loaded.base),
        model=served_source(sampling),
        dtype=sampling.config.model.dtype,
        max_context=sampling.model.max_context,
        max_batch=engine.max_batch,
        args=engine.args,
        env=engine.env,
        cores=(),
        log=folder.engine_log,
        state=folder.server_state(0),
        start_seconds=engine.start_seconds,
        sleeps=sleeps,
        adapter_rank=lora.rank if (lora := sampling.config.learner.lora) and engine.takes_adapters else None,
    )
    if (actors := engine_actors(sampling)) is not None:
        return vllm_actors(server, labels, actors, folder)
    count, available = engine.num_engines or 1, sorted(os.sched_getaffinity(0))
    launches: list[Launch] = []
    for number in range(count):
        state = folder.server_state(number)
        sweep(state)
        gpus = server_gpus(sampling.config, engine.args, number, {**env, **engine.env})
        cores = cores_of(number, count, available)
        one = replace(server, cores=cores, state=state, env={**gpus, **engine.env})
        launches.append(partial(vllm_process, one, labels, env=env))
    return launches


def _executable(name: str, base: Path) -> str:
    """A path is relative to the config file, as everywhere in it; a bare name is looked for in PATH."""
    return str((base / name).absolute()) if "/" in name else name
