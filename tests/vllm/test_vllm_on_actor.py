"""A real vLLM server that an actor starts on a node of its own: weights reach it by broadcast, and it ends with its
actor."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_weights_contract import ReferenceModel, updated
from guarded_vllm import CLOSE, PROMPT, VLLM
from ray_nodes import OnNode, engine_role, simulated_nodes

import loopwright
from loopwright.build.engine_actors import EngineActors, vllm_actor
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.leftovers import VARIABLE
from loopwright.engines.vllm.process import VllmServer
from loopwright.models.smollm2 import smollm2_folder
from loopwright.serve.marked_processes import ProcessTable
from loopwright.types import GenerateRequest, Sampling
from loopwright.weights.broadcast import BroadcastEngine

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CACHE = Path.home() / ".cache" / "loopwright" / "models"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The id of a node that is not the driver's."""
    with simulated_nodes(num_cpus=2) as simulated:
        yield str(simulated.add().node_id)


def mark_of(name: str) -> str:
    """By which the processes of the server of that name are known."""
    state = Path(tempfile.gettempdir(), f"loopwright-{os.getuid()}-server-{name}.json")
    return str(json.loads(state.read_text())["mark"])


def living(mark: str) -> int:
    return len(ProcessTable(VARIABLE, {}).of(mark))


async def test_a_server_on_another_node_gets_weights_by_broadcast(elsewhere: str, tmp_path: Path) -> None:
    model = smollm2_folder(CACHE)
    server = VllmServer(
        executable=str(VLLM),
        model=str(model),
        dtype="float32",
        max_context=1024,
        max_batch=8,
        args=("--enforce-eager",),
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(Path(loopwright.__file__).parents[1])},
        cores=(),
        log=tmp_path / "log",
        state=tmp_path / "state",
        start_seconds=900,
    )
    on: Any = OnNode(elsewhere)
    actors, reference = EngineActors(on, engine_role()), ReferenceModel(model)
    run = f"test-{os.getpid()}"
    async with vllm_actor(actors, 0, server, VersionLabels(run, 0), run) as worker:
        assert isinstance(worker.engine, BroadcastEngine)
        await updated(worker.engine, 0, reference.write(tmp_path / "w-0"))
        reference.move()
        await updated(worker.engine, 1, reference.write(tmp_path / "w-1"))
        request = GenerateRequest("a", tuple(PROMPT), Sampling(max_new_tokens=8, seed=3))
        sampled = await worker.engine.generate(request)
        assert sampled.versions == (1,) * 8
        assert sampled.logprobs == pytest.approx(reference.of(PROMPT, sampled), abs=CLOSE)
        mark = mark_of(f"{run}-0")
        assert living(mark) > 1
        assert worker.capacity.sequences == 8
    assert living(mark) == 0
