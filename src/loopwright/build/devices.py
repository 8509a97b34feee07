"""Which GPU each process of a run computes on. Actors see the GPUs that they reserve, numbered from 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from loopwright.config import RunConfig, TorchEngineConfig
from loopwright.models.device import AUTO, CPU, CUDA, SeenGpus, seen_gpus
from loopwright.models.gpus import UNKNOWN
from loopwright.types import TrainerKind

VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_BY_ROCM = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""vLLM refuses to start if these and `VISIBLE` differ."""
VLLM_PARALLEL = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
VLLM_SHORT = ("-tp", "-pp", "-dp")
"""Options of vLLM: a server takes the product of their values in GPUs."""


def learner_device(config: RunConfig) -> str:
    """What `model.device` means for the learner. Ranks on actors that reserve no GPU see none."""
    learner, wanted = config.learner, config.model.device
    sees_none = learner.is_on_actors and not learner.num_gpus_per_rank
    return CPU if wanted == AUTO and sees_none else wanted


def engine_devices(config: RunConfig, seen: SeenGpus | None = None) -> list[str]:
    """The device of each engine of ours in a process of its own or on an actor: what the config names, or else all
    GPUs of this machine in turn. A process finds out itself what an `auto` is that is left."""
    engine = config.rollout.engine
    if not isinstance(engine, TorchEngineConfig):
        return []
    count, wanted = engine.processes(config.trainer.kind), engine.device or config.model.device
    if engine.num_actors:
        return [CPU if wanted == AUTO and not engine.num_gpus_per_actor else wanted] * count
    if wanted not in (AUTO, CUDA):
        return [wanted] * count
    seen = seen or seen_gpus()
    if not seen.usable:
        return [wanted] * count
    first = _first_engine_gpu(config, seen)
    return [f"{CUDA}:{(first + number) % seen.usable}" for number in range(count)]


def server_gpus(
    config: RunConfig, args: Sequence[str], number: int, env: Mapping[str, str], seen: SeenGpus | None = None
) -> dict[str, str]:
    """The variable that shows a vLLM server with `args` its own GPUs. `env` is what the server sees otherwise. Empty if
    there is nothing to choose, or if that cannot be known here."""
    seen = seen or seen_gpus()
    # vLLM has an environment of its own, so it may use GPUs that the torch of this process cannot.
    count, size = seen.usable or seen.in_machine, _gpus_per_server(args)
    if not 0 < count < UNKNOWN or not size or any(name in env for name in VISIBLE_BY_ROCM):
        return {}
    visible = env[VISIBLE].split(",") if VISIBLE in env else [str(gpu) for gpu in range(count)]
    if size > len(visible):
        return {}
    first = _first_engine_gpu(config, seen) + number * size
    return {VISIBLE: ",".join(visible[(first + gpu) % len(visible)].strip() for gpu in range(size))}


def _first_engine_gpu(config: RunConfig, seen: SeenGpus) -> int:
    """The GPU of the first engine. While engines sample, a disaggregated learner trains: they begin after its GPUs."""
    device = learner_device(config)
    if config.trainer.kind is TrainerKind.COLOCATE or not seen.usable or device == CPU:
        return 0
    if device in (AUTO, CUDA):
        return config.learner.ranks
    return int(device.partition(":")[2]) + 1


def _gpus_per_server(args: Sequence[str]) -> int | None:
    """None if it is not known: in a file that --config names, or no number."""
    size, words = 1, [word for argument in args for word in argument.split("=", 1)]
    for word, value in pairwise([*words, ""]):
        name = word.replace("_", "-")
        if name == "--config":
            return None
        if name in VLLM_SHORT or (len(name) > len("--") and any(option.startswith(name) for option in VLLM_PARALLEL)):
            if not value.isdigit():
                return None
            size *= int(value)
    return size
