"""One rank of a learner, built in its own process from the config of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from loopwright.build.parts import model_source
from loopwright.build.recipe import make_rank_recipe, require_vocabulary
from loopwright.config import Loaded
from loopwright.errors import ConfigError
from loopwright.learn.body import Body
from loopwright.learn.ranks.communication import Communication
from loopwright.learn.ranks.meeting import meeting
from loopwright.learn.ranks.messages import RankPlace
from loopwright.learn.ranks.rank import RankLearner
from loopwright.learn.ranks.shards import ShardedBody, Sharding
from loopwright.models.device import CUDA, chosen_device
from loopwright.models.runtime import configure


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What every rank is built from. `loaded` has no secrets and no objects of the driver's program."""

    loaded: Loaded
    cache: Path
    threads: int


def open_rank(place: RankPlace, beat: Callable[[], None], stack: ExitStack) -> RankLearner:
    """Build this rank's part of the learner, in its own process."""
    setup: RankSetup = place.setup
    loaded, config = setup.loaded, setup.loaded.config
    configure(threads=setup.threads, deterministic=False)
    device = _device(config.model.device, place)
    mesh = stack.enter_context(meeting(place.rank, place.ranks, place.folder, device, place.silence_seconds))
    sharding = Sharding(mesh, device, getattr(torch, config.model.dtype), Communication())

    def load(path: str, *, checkpointed: bool = False) -> ShardedBody:
        source = model_source(loaded, path)
        return sharding.load(
            source, cache=setup.cache, max_context=config.model.max_context, checkpointed=checkpointed, beat=beat
        )

    body = load(config.model.path, checkpointed=config.learner.checkpoint_activations)

    def reference(path: str) -> Body:
        found = load(path)
        require_vocabulary(path, found.model.config.vocab_size, body.model.config.vocab_size)
        found.model.requires_grad_(False)
        return found

    return RankLearner(body, make_rank_recipe(loaded, reference), sharding, beat)


def _device(wanted: str, place: RankPlace) -> torch.device:
    """Rank r takes the r-th GPU that it sees."""
    device = chosen_device(wanted)
    if device.type != CUDA:
        return device
    if torch.cuda.device_count() < place.ranks:
        raise ConfigError(
            f"learner.ranks is {place.ranks}, and torch can use {torch.cuda.device_count()} GPUs",
            remedy="lower learner.ranks, or set model.device to cpu; CUDA_VISIBLE_DEVICES may hide GPUs",
        )
    return torch.device(CUDA, place.rank)
