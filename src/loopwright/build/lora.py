"""The adapters that a run trains, if it trains any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwright.config import LoraConfig, RunConfig
from loopwright.config.extras import require
from loopwright.core.seeds import derive_seed
from loopwright.models.adapters import AdapterShape
from loopwright.models.load import LoadedModel

if TYPE_CHECKING:
    from loopwright.learn.lora import AdaptedModel
    from loopwright.learn.ranks.shards import WantedAdapters


def adapted_model(config: RunConfig, model: LoadedModel) -> AdaptedModel | None:
    """`model` with new adapters, or None if all its weights are trained. Call it in the compute thread."""
    lora = config.learner.lora
    if lora is None:
        return None
    require("lora", "learner.lora")
    # peft takes seconds to import.
    from loopwright.learn.lora import AdaptedModel, AdapterUse

    engine = config.rollout.engine
    use = AdapterUse(
        beside_engine=engine.processes(config.trainer.kind) == 0,
        merged_for_engines=not engine.takes_adapters,
    )
    return AdaptedModel(model, adapter_shape(lora), derive_seed(config.trainer.seed, "lora"), use)


def wanted_adapters(config: RunConfig) -> WantedAdapters | None:
    """What ranks put beside the weights of their model."""
    lora = config.learner.lora
    if lora is None:
        return None
    require("lora", "learner.lora")
    from loopwright.learn.ranks.shards import WantedAdapters

    seed = derive_seed(config.trainer.seed, "lora")
    return WantedAdapters(adapter_shape(lora), seed, not config.rollout.engine.takes_adapters)


def adapter_shape(lora: LoraConfig) -> AdapterShape:
    return AdapterShape(lora.rank, lora.alpha, lora.named_targets, lora.rslora)
