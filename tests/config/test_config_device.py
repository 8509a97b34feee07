"""Where a model is computed: which settings of it go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.build.devices import engine_devices, learner_device
from loopwright.build.engines import _launches
from loopwright.build.vllm import vllm_launches
from loopwright.engines.vllm.process import VllmServer
from loopwright.models.device import SeenGpus
from loopwright.runs.config_changes import FREE

APART = "rollout.engine.num_engines=1"
DISAGGREGATED = ("trainer.kind=disaggregated", "produce.kind=async")
NONE = SeenGpus(build=None, usable=0, in_machine=0)
FOUR = SeenGpus(build="CUDA 13.0", usable=4, in_machine=4)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.device=tpu"], "a device is auto, cpu, cuda, or cuda:N"),
        (["model.device=cuda:x"], "a device is auto, cpu, cuda, or cuda:N"),
        (["model.device=cuda", "trainer.deterministic=true"], "nobody has seen a GPU repeat a run"),
        (["model.device=cuda:0", "rollout.engine.device=cuda:1"], "the learner's own parameters, on cuda:0"),
        (["model.device=cuda", "rollout.engine.num_actors=1"], "the engine computes on cuda: an actor sees"),
        (["rollout.engine.device=cuda:0", "rollout.engine.num_actors=1"], "num_gpus_per_actor"),
    ],
)
def test_what_cannot_work_is_refused(problems_of, minimal, overrides, words):
    (problem,) = problems_of(minimal, *overrides)
    assert words in problem


@pytest.mark.parametrize(
    ("overrides", "engine"),
    [
        ([APART], "auto"),
        (["model.device=cuda:1", APART], "cuda:1"),
        (["model.device=cuda:0", "rollout.engine.device=cuda:1", APART], "cuda:1"),
        (["model.device=cpu", APART], "cpu"),
    ],
)
def test_an_engine_of_its_own_has_the_models_device_unless_it_is_told_another(load_text, minimal, overrides, engine):
    loaded = load_text(minimal, *overrides)
    assert loaded.warnings == ()
    assert engine_devices(loaded.config, NONE) == [engine]


@pytest.mark.parametrize(
    ("overrides", "engines"),
    [
        (["model.device=auto"], "0 1 2"),
        (["model.device=cuda"], "0 1 2"),
        (["model.device=cpu"], "cpu"),
        (["model.device=cuda:1"], "1 1 1"),
        (["rollout.engine.device=cuda:2"], "2 2 2"),
        # While engines sample, the learner trains: they begin after its GPUs.
        ([*DISAGGREGATED], "1 2 3"),
        ([*DISAGGREGATED, "model.device=cuda:1", "rollout.engine.device=cuda"], "2 3 0"),
        ([*DISAGGREGATED, "model.device=cpu", "rollout.engine.device=cuda"], "0 1 2"),
        ([*DISAGGREGATED, "learner.ranks=2"], "2 3 0"),
        ([*DISAGGREGATED, "learner.ranks=4"], "0 1 2"),
        ([*DISAGGREGATED, "learner.ranks=2", "learner.placement=ray"], "0 1 2"),
        ([*DISAGGREGATED, "learner.ranks=2", "learner.placement=ray", "learner.num_gpus_per_rank=1"], "2 3 0"),
    ],
)
def test_engines_of_this_machine_take_its_gpus_in_turn(load_text, minimal, overrides, engines):
    config = load_text(minimal, "rollout.engine.num_engines=3", *overrides).config
    named = [f"cuda:{one}" for one in engines.split()] if engines != "cpu" else ["cpu"] * 3
    assert engine_devices(config, FOUR) == named


def test_engines_on_actors_see_the_gpus_that_they_reserve(load_text, minimal):
    config = load_text(minimal, "rollout.engine.num_actors=2").config
    assert engine_devices(config, FOUR) == ["cpu", "cpu"]
    config = load_text(minimal, "rollout.engine.num_actors=2", "rollout.engine.num_gpus_per_actor=1").config
    assert engine_devices(config, FOUR) == ["auto", "auto"]


def test_ranks_on_actors_without_a_gpu_compute_on_the_cpu(load_text, minimal):
    ranks = (APART, "learner.ranks=2", "learner.placement=ray")
    assert learner_device(load_text(minimal, *ranks).config) == "cpu"
    assert learner_device(load_text(minimal, *ranks, "learner.num_gpus_per_rank=1").config) == "auto"
    assert learner_device(load_text(minimal, APART, "learner.ranks=2").config) == "auto"


def test_each_engine_is_started_with_its_own_device(load_text, minimal, monkeypatch, tmp_path):
    monkeypatch.setattr("loopwright.build.devices.seen_gpus", lambda: FOUR)
    loaded = load_text(minimal, *DISAGGREGATED, "rollout.engine.num_engines=3")
    sampling: Any = SimpleNamespace(config=loaded.config, loaded=loaded, capacity=None, engine_threads=None)
    folder: Any = SimpleNamespace(engine_log=tmp_path / "engine.log")
    nobody: Any = None
    starts: Any = _launches(sampling, folder, nobody, nobody, {})
    commands = [start.args[0] for start in starts]
    assert [command[command.index("--device") + 1] for command in commands] == ["cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize(
    ("overrides", "env", "gpus"),
    [
        ([], {}, ["0", "1"]),
        ([*DISAGGREGATED], {}, ["1", "2"]),
        ([*DISAGGREGATED], {"CUDA_VISIBLE_DEVICES": "4,5,GPU-a,7"}, ["5", "GPU-a"]),
        (['rollout.engine.args=[--tensor-parallel-size, "2"]'], {}, ["0,1", "2,3"]),
        (['rollout.engine.args=[--tensor_parallel=2, -pp, "2"]'], {}, ["0,1,2,3", "0,1,2,3"]),
        ([*DISAGGREGATED, "rollout.engine.args=[-tp=2]"], {}, ["1,2", "3,0"]),
        # What cannot be known here is left to vLLM and its user.
        (['rollout.engine.args=[-tp, "8"]'], {}, [None, None]),
        (["rollout.engine.args=[--config, vllm.yaml]"], {}, [None, None]),
        ([], {"HIP_VISIBLE_DEVICES": "0,1"}, [None, None]),
        (['rollout.engine.env.CUDA_VISIBLE_DEVICES="3"'], {}, ["3", "3"]),
    ],
)
def test_each_vllm_server_sees_its_own_gpus(load_text, minimal, monkeypatch, tmp_path, overrides, env, gpus):
    monkeypatch.setattr("loopwright.build.devices.seen_gpus", lambda: FOUR)
    assert [
        one.env.get("CUDA_VISIBLE_DEVICES") for one in servers(load_text, minimal, tmp_path, overrides, env)
    ] == gpus


def test_without_gpus_nothing_is_said_of_them(load_text, minimal, monkeypatch, tmp_path):
    monkeypatch.setattr("loopwright.build.devices.seen_gpus", lambda: NONE)
    assert [one.env for one in servers(load_text, minimal, tmp_path, [], {})] == [{}, {}]


def servers(load_text, minimal, folder, overrides, env) -> list[VllmServer]:
    """The two servers that a run starts."""
    loaded = load_text(
        minimal, "model.path=org/model", "rollout.engine.kind=vllm", "rollout.engine.num_engines=2", *overrides
    )
    model: Any = SimpleNamespace(max_context=64)
    sampling: Any = SimpleNamespace(config=loaded.config, loaded=loaded, model=model, cache=folder)
    run: Any = SimpleNamespace(engine_log=folder / "log", server_state=lambda number: folder / str(number))
    nobody: Any = None
    engine: Any = loaded.config.rollout.engine
    starts: Any = vllm_launches(sampling, engine, run, nobody, nobody, env)
    return [start.args[0] for start in starts]


def test_a_run_goes_on_elsewhere():
    assert {"model.device", "rollout.engine.device", "learner.checkpoint_activations"} <= set(FREE)
