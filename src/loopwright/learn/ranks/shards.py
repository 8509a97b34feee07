"""A model that is sharded over ranks by FSDP2: built without weights, then each rank reads its own part of them.

FSDP averages gradients over ranks, and our loss is a sum. Both setters that change this act on one module, so they are
called on every one: on the root alone, the layers' gradients would be silently too small.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from transformers import GenerationConfig

from loopwright.errors import ModelError
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.body import ModuleBody
from loopwright.learn.checkpointing import layers_of
from loopwright.learn.ranks.communication import Communication, TimedGather, TimedReduce
from loopwright.learn.ranks.reading import fill_from, fill_model
from loopwright.learn.ranks.trained import ShardedAdapters, ShardedModel, ShardedTrained
from loopwright.learn.samples import Tensors
from loopwright.models.adapters import AdapterShape
from loopwright.models.load import bytes_of, context_of, read_config
from loopwright.models.memory import room_for_weights
from loopwright.models.outline import model_on_meta, whole_source_of
from loopwright.models.rotary import choose_angles

if TYPE_CHECKING:
    from loopwright.learn.adapters import ModelAdapters

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sharding:
    """How models are sharded: over the ranks of `mesh`. They compute in the precision `dtype_name`, and
    their parameters are float32."""

    mesh: DeviceMesh
    device: torch.device
    dtype_name: str
    communication: Communication

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    def load(
        self,
        path: str,
        *,
        cache: Path,
        max_context: int | None,
        checkpointed: bool,
        beat: Callable[[], None],
        wanted: WantedAdapters | None = None,
    ) -> ShardedBody:
        """The model at `path`, with this rank's part of its weights. With `wanted`, it gets adapters, and these are
        trained."""
        source = whole_source_of(path, cache)
        config = read_config(source)
        model = model_on_meta(config)
        with suppress(OSError):
            # Only weights come with it. A model may have none.
            model.generation_config = GenerationConfig.from_pretrained(source)
        adapters = None if wanted is None else wanted.put_into(model, source)
        # Before it is sharded, so that what computes a layer again finds its parameters whole.
        why = f"sharded over {self.mesh.size()} ranks"
        inner = ModuleBody(model, why, checkpointed=checkpointed)
        self._shard(model, adapters)
        with room_for_weights(source, self.device, lambda: bytes_of(model)):
            model.to_empty(device=self.device)
        # Each place of a tied weight got a parameter of its own.
        model.tie_weights()
        _fill_buffers(model)
        trained: ShardedTrained
        if wanted is None or adapters is None:
            fill_model(dict(model.named_parameters()), source, beat)
            trained = ShardedModel(model, self.dtype, beat)
        else:
            fill_model(adapters.frozen, source, beat)
            fill_from(adapters.start(wanted.seed), beat)
            trained = ShardedAdapters(adapters, self.dtype, beat, merged_for_engines=wanted.merged_for_engines)
        choose_angles(model, context_of(config, max_context))
        return ShardedBody(model, inner, trained, adapters)

    def _shard(self, model: Any, adapters: ModelAdapters | None) -> None:
        half = None if self.dtype == torch.float32 else self.dtype
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
        parts = (*layers_of(model), model)
        if adapters is not None and half is not None:
            # Engines merge the adapters in float32, and peft computes them so: they are not rounded with the rest.
            for matrices in adapters.modules_of(parts):
                fully_shard(matrices, mesh=self.mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
        for part in parts:
            fully_shard(part, mesh=self.mesh, mp_policy=policy)
        gather: Any = TimedGather(self.communication)
        reduce: Any = TimedReduce(self.communication)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
                part.set_custom_all_gather(gather)
                part.set_custom_reduce_scatter(reduce)


@dataclass(frozen=True, slots=True)
class WantedAdapters:
    """The adapters that ranks train, their first numbers by `seed`, and whether engines get whole weights."""

    shape: AdapterShape
    seed: int
    merged_for_engines: bool

    def put_into(self, model: Any, source: str) -> ModelAdapters:
        # peft takes seconds to import.
        from loopwright.learn.adapters import add_adapters

        return add_adapters(model, self.shape, source)


class ShardedBody:
    """A Body whose parameters are sharded: they are whole only within `run`."""

    def __init__(
        self, model: Any, inner: ModuleBody, trained: ShardedTrained, adapters: ModelAdapters | None = None
    ) -> None:
        self.model = model
        self.trained = trained
        self.adapters = adapters
        self._inner = inner
        self.name = inner.name
        model.run_whole = MethodType(lambda _, work: work(), model)
        register_fsdp_forward_method(model, "run_whole")

    @property
    def head(self) -> torch.Tensor:
        return self._inner.head

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        return self._inner.hidden(data, plan)

    def run(self, work: Callable[[], T]) -> T:
        result: T = self.model.run_whole(work)
        if not torch.is_grad_enabled():
            # What is not in a layer stays whole until a backward pass. Without one, an update would not reach it.
            self.model.reshard()
        return result


def _fill_buffers(model: Any) -> None:
    """Compute the buffers that no file has, such as the angles' frequencies, by transformers' own initialisation."""
    stored = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    if stored:
        raise ModelError(
            f"the model keeps {min(stored)!r} beside its parameters, which ranks cannot load",
            remedy="train it in one process: set learner.ranks to 1",
        )
    for parameter in model.parameters():
        parameter._is_hf_initialized = True
    model.initialize_weights()
