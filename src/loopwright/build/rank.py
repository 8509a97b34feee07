"""One rank of a learner, built in its own process from the config of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loopwright.build.devices import learner_device
from loopwright.build.lora import wanted_adapters
from loopwright.build.parts import model_source
from loopwright.build.recipe import make_rank_recipe, require_vocabulary
from loopwright.config import Loaded
from loopwright.learn.body import Body
from loopwright.learn.ranks.communication import Communication
from loopwright.learn.ranks.meeting import meeting
from loopwright.learn.ranks.messages import RankPlace
from loopwright.learn.ranks.rank import RankLearner
from loopwright.learn.ranks.shards import ShardedBody, Sharding, WantedAdapters
from loopwright.models.device import device_of_rank
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
    device = device_of_rank(learner_device(config), *((place.rank, place.ranks) if place.address is None else (0, 1)))
    mesh = stack.enter_context(meeting(place, device))
    sharding = Sharding(mesh, device, config.model.dtype, Communication())

    def load(path: str, *, checkpointed: bool = False, wanted: WantedAdapters | None = None) -> ShardedBody:
        return sharding.load(
            model_source(loaded, path),
            cache=setup.cache,
            max_context=config.model.max_context,
            checkpointed=checkpointed,
            beat=beat,
            wanted=wanted,
        )

    wanted = wanted_adapters(config)
    body = load(config.model.path, checkpointed=config.learner.checkpoint_activations, wanted=wanted)

    def reference(path: str) -> Body:
        if body.adapters is not None and config.learner.kl is not None and config.learner.kl.reference is None:
            return body.adapters.without(body)
        found = load(path)
        require_vocabulary(path, found.model.config.vocab_size, body.model.config.vocab_size)
        found.model.requires_grad_(False)
        return found

    return RankLearner(body, make_rank_recipe(loaded, place.rank, reference), sharding, beat)
