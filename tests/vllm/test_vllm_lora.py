"""Adapters of SmolLM2 on a real vLLM server: a run of five steps, and an adapter that was never delivered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded_vllm import VLLM

from loopwright.build import open_run
from loopwright.config import load
from loopwright.core.adapter_names import B
from loopwright.core.advantage import ADVANTAGES
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.engine import VllmEngine
from loopwright.engines.vllm.process import VllmServer, vllm_server
from loopwright.errors import ProofError
from loopwright.learn.learner import TorchLearner
from loopwright.learn.lora import AdaptedModel
from loopwright.learn.losses import reinforce
from loopwright.learn.recipe import Recipe
from loopwright.models.adapters import AdapterShape
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.models.smollm2 import smollm2_folder
from loopwright.models.weight_files import WeightFileWriter
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl
from loopwright.types import WeightFile
from loopwright.weights.proof import WeightProof

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic_vllm.yaml"
CACHE = Path.home() / ".cache" / "loopwright" / "models"
SMALL = ("eval=null", "trainer.groups_per_step=3", "rollout.samples_per_task=4", "trainer.export=false")
RANK = 8


async def test_five_steps_with_adapters_each_update_proven(tmp_path: Path) -> None:
    overrides = (f"trainer.run_dir={tmp_path / 'run'}", f"rollout.engine.executable={VLLM}", *SMALL)
    settings = (*overrides, "trainer.steps=5", f"learner.lora={{rank: {RANK}, alpha: 16}}", "learner.lr=1e-3")
    async with open_run(load(EXAMPLE, settings), cache=CACHE, stop=asyncio.Event(), env=os.environ) as run:
        assert await run.train()
    proofs = metric(run.folder, "engine/0/proof_max")
    assert len(proofs) >= 5
    assert max(proofs) < 5e-4
    moved = metric(run.folder, "sync/bytes")
    assert 0 < max(moved) < 20 * 2**20, "adapters alone"


async def test_an_adapter_that_was_never_delivered_is_caught(tmp_path: Path) -> None:
    with ComputeThread() as compute:
        learner, proof = await learning(compute)
        async with served(tmp_path) as engine:
            delivered = await published(learner, tmp_path / "weights-1.safetensors")
            async with proof.of(1):
                await engine.load(1, delivered)
                await proof("0", engine, 1)
            lost = await published(learner, tmp_path / "weights-2.safetensors")

            async def pretend(name: str, file: WeightFile) -> None:
                """The server is never told, and requests ask for the model alone."""
                engine._adapters.name = None

            engine._adapters.load = pretend  # type: ignore[method-assign]
            async with proof.of(2):
                await engine.load(2, lost)
                with pytest.raises(ProofError, match="does not serve the weights of version 2"):
                    await proof("0", engine, 2)


def metric(folder: RunFolder, name: str) -> list[Any]:
    return [record[name] for record in read_jsonl(folder.metrics) if name in record]


async def learning(compute: ComputeThread) -> tuple[TorchLearner, WeightProof]:
    """A learner whose adapters have an effect, as after a train step."""

    def make() -> TorchLearner:
        loaded = load_model("smollm2", cache=CACHE, max_context=1024)
        adapted = AdaptedModel(loaded, AdapterShape(RANK, 16), seed=0)
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, matrix in adapted.parameters.items():
                if name.endswith(B):
                    matrix.add_(torch.randn(matrix.shape, generator=random), alpha=1e-3)
        recipe = Recipe(ADVANTAGES["grpo"], reinforce, temperature=1.0, steps=1, constant_length=1)
        return TorchLearner(loaded, recipe, compute, adapted)

    learner = await compute.run(make)
    return learner, WeightProof(learner, learner._model.config.vocab_size)


async def published(learner: TorchLearner, path: Path) -> WeightFile:
    writer = WeightFileWriter(path)
    await learner.publish(writer)
    return writer.finish()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[VllmEngine]:
    server = VllmServer(
        executable=str(VLLM),
        model=str(smollm2_folder(CACHE)),
        dtype="float32",
        max_context=1024,
        max_batch=16,
        args=("--enforce-eager",),
        env={"VLLM_CPU_KVCACHE_SPACE": "1"},
        cores=tuple(sorted(os.sched_getaffinity(0))),
        log=folder / "log",
        state=folder / "state",
        start_seconds=900.0,
        adapter_rank=RANK,
    )
    async with (
        vllm_server(server, env=os.environ) as (_, url),
        VllmEngine.connect(url, None, labels=VersionLabels("run", 1)) as engine,
    ):
        yield engine
