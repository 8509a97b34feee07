"""What memory a run needs, process by process, from its config and the shapes of its model. No weights are loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.build import parts
from loopwright.build.devices import engine_devices, learner_device
from loopwright.build.lora import adapted_model
from loopwright.build.memory_demand import Demand, answer_tokens
from loopwright.build.memory_parts import MemoryPart, MemoryPlan, ProcessMemory, When
from loopwright.config import Loaded, TorchEngineConfig
from loopwright.engines.torch.batch import halving
from loopwright.engines.torch.memory_plan import engine_memory
from loopwright.errors import ModelError
from loopwright.learn.memory_plan import StepShape, TrainedState, gathered_memory, step_memory
from loopwright.learn.room import smaller_batches
from loopwright.learn.trained import WholeModel
from loopwright.models.device import CPU, planned_device
from loopwright.models.memory import SMALLER_STATE, anonymous_memory, is_out_of_memory
from loopwright.models.shapes import META, ModelShape, model_shape

AT_WORK = 160 * 10**6
"""What the buffers of torch's libraries, threads and the run's own records take on a CPU: runs of SmolLM2 and of a tiny
model took 150 and 170 MB more than their tensors."""

if TYPE_CHECKING:
    from loopwright.learn.lora import AdaptedModel

KEPT_BY_THE_ALLOCATOR = 1.35
"""The memory of a train step on a CPU, in terms of the bytes of its tensors: glibc keeps what was freed between tensors
that live on. Measured with SmolLM2."""


LESS_TRAINED = f"train adapters (learner.lora), which leaves weights without gradients and moments; or {SMALLER_STATE}"


def plan_memory(loaded: Loaded, cache: Path, tokens: int | None = None) -> MemoryPlan:
    """The plan for conversations of `tokens` tokens, or of as many as the model's context has. Raises ModelError if
    there is no such model, or if it could not run."""
    config = loaded.config
    device = planned_device(learner_device(config), repeatable=config.trainer.deterministic)
    try:
        with _shape(loaded, cache, device) as shape:
            longest = shape.loaded.max_context
        size = min(longest, tokens or longest)
        answer = answer_tokens(config, evaluated=False, size=size)
        planner = _Planner(loaded, cache, device, max(1, size - answer), answer)
        return MemoryPlan(size, answer, tuple(planner.processes()))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        # What torch raises where an operation needs numbers.
        raise ModelError(
            f"the memory of model {config.model.path!r} cannot be planned, because torch cannot compute it without "
            f"weights: {str(error).partition(chr(10))[0]}",
            remedy="run a step with short answers, and watch its memory; please report this with your model",
        ) from error


@dataclass(frozen=True, slots=True)
class _Planner:
    """`prompt` and `answer` are the tokens of each conversation."""

    loaded: Loaded
    cache: Path
    device: str
    prompt: int
    answer: int

    def processes(self) -> Iterator[ProcessMemory]:
        config = self.loaded.config
        engine, trainer = config.rollout.engine, config.trainer
        apart = engine.processes(trainer.kind)
        if config.learner.ranks > 1:
            yield ProcessMemory("the run", CPU, tuple(_base(CPU)))
            yield from self._ranks()
        else:
            own = [*_base(self.device), *self._learner()]
            if apart == 0:
                own += self._engine(self.device)
            yield from self._on_its_device("the run", self.device, own)
        if apart and isinstance(engine, TorchEngineConfig):
            for wanted, count in Counter(engine_devices(config)).items():
                device = planned_device(wanted)
                needed = [*_base(device), *self._engine(device, count=apart)]
                yield from self._on_its_device("an engine", device, needed, count=count, here=not engine.num_actors)
        if apart:
            yield ProcessMemory("shared memory of all processes", CPU, (self._on_the_way(),))

    def _on_its_device(
        self, name: str, device: str, own: list[MemoryPart], *, count: int = 1, here: bool = True
    ) -> Iterator[ProcessMemory]:
        """A process that loads the whole model: on the CPU, from where it goes to a GPU."""
        yield ProcessMemory(name, device, tuple(own), count, here)
        if device != CPU:
            with self._shape(META) as shape:
                loading = MemoryPart("weights while they are loaded", shape.size, SMALLER_STATE)
            yield ProcessMemory(f"{name}, beside its GPU,", CPU, (*_base(CPU), loading), count, here)

    @property
    def _device_type(self) -> str:
        return self.device.partition(":")[0]

    def _learner(self) -> Iterator[MemoryPart]:
        config, learner = self.loaded.config, self.loaded.config.learner
        limit, checkpoints = learner.micro_batch_tokens, learner.checkpoint_activations
        # peft cannot change a model of a FakeTensorMode.
        with self._shape(self.device if learner.lora is None else META) as shape:
            trained = self._trained(shape)
            state = TrainedState.of(trained.parameters, shape.size)
            memory = step_memory(
                shape,
                trained,
                self._step(),
                micro_batch_tokens=limit,
                checkpointed=checkpoints,
                examples=self._examples(),
                device_type=self._device_type,
            )
            beside = 0
            if not isinstance(trained, WholeModel) and not config.rollout.engine.processes(config.trainer.kind):
                beside = sum(weight.nbytes for weight in trained.base.values())
        yield MemoryPart("weights", state.weights, SMALLER_STATE)
        if beside:
            yield MemoryPart(
                "weights under adapters, apart from the engine's", beside, "name fewer learner.lora.targets"
            )
        for name, size in (
            ("weights in float32", state.masters),
            ("gradients", state.gradients),
            ("moments of AdamW", state.moments),
        ):
            if size:
                yield MemoryPart(name, size, LESS_TRAINED if learner.lora is None else SMALLER_STATE)
        if learner.kl is not None and (learner.lora is None or learner.kl.reference is not None):
            with self._shape(self.device, learner.kl.reference) as shape:
                yield MemoryPart("reference model", shape.size, "remove learner.kl")
        peak = int(memory.peak * (KEPT_BY_THE_ALLOCATOR if self.device == CPU else 1))
        yield MemoryPart(
            f"activations and logits of {memory.tokens:,} tokens",
            max(0, peak - state.gradients),
            smaller_batches(memory.tokens, memory.chain, limit=limit, checkpoints=checkpoints),
            When.TRAINING,
        )

    def _ranks(self) -> Iterator[ProcessMemory]:
        """On a CPU all ranks are on the same device; else rank r takes the r-th."""
        learner, ranks = self.loaded.config.learner, self.loaded.config.learner.ranks
        limit, checkpoints = learner.micro_batch_tokens, learner.checkpoint_activations
        with self._shape(META) as shape:
            trained = self._trained(shape)
            state = TrainedState.on_each_of(ranks, trained.parameters, shape)
            gathered = gathered_memory(shape, with_gradients=learner.lora is None)
            memory = step_memory(
                shape,
                trained,
                self._step(ranks),
                micro_batch_tokens=limit,
                checkpointed=checkpoints,
                examples=self._examples(ranks),
                device_type=self._device_type,
                sharded=True,
            )
        more = f"set learner.ranks to {2 * ranks}"
        gathers = "weights and gradients" if learner.lora is None else "weights"
        activations = MemoryPart(
            f"activations and logits of {memory.tokens:,} tokens",
            int(memory.peak * (KEPT_BY_THE_ALLOCATOR if self.device == CPU else 1)),
            smaller_batches(memory.tokens, memory.chain, limit=limit, checkpoints=checkpoints),
            When.TRAINING,
        )
        own = [
            *_base(self.device),
            MemoryPart("its part of the weights", state.weights, more),
            MemoryPart("its part of the gradients", state.gradients, more),
            MemoryPart("its part of AdamW's moments", state.moments, more),
            MemoryPart(f"{gathers} that are whole", gathered, SMALLER_STATE, When.TRAINING),
            activations,
        ]
        if learner.kl is not None and (learner.lora is None or learner.kl.reference is not None):
            with self._shape(META, learner.kl.reference) as shape:
                size = TrainedState.on_each_of(ranks, {}, shape).weights
            own.append(MemoryPart("its part of the reference model", size, "remove learner.kl"))
        here = not learner.is_on_actors
        if self.device == CPU:
            yield ProcessMemory("a rank", CPU, tuple(own), ranks, here)
            return
        for rank in range(ranks):
            yield ProcessMemory(f"rank {rank}", f"{self._device_type}:{rank}", tuple(own), here=here)
        # A rank reads its part of the weights only, tensor by tensor.
        yield ProcessMemory("a rank, beside its GPU,", CPU, tuple(_base(CPU)), ranks, here)

    def _trained(self, shape: ModelShape) -> WholeModel | AdaptedModel:
        return adapted_model(self.loaded.config, shape.loaded) or WholeModel(shape.loaded)

    def _step(self, ranks: int = 1) -> StepShape:
        """A mini-batch, as large as it gets, or what each of several ranks gets of it."""
        config = self.loaded.config
        groups = self._of_a_mini_batch(config.trainer.groups_per_step, ranks)
        return StepShape(groups, config.rollout.samples_per_task, self.prompt, self.answer)

    def _examples(self, ranks: int = 1) -> StepShape | None:
        """Those that a mini-batch imitates. How long they are is not known: here they are as long as conversations, and
        answers but for their first token."""
        sft = self.loaded.config.learner.sft
        if sft is None:
            return None
        return StepShape(self._of_a_mini_batch(sft.examples_per_step, ranks), 1, 1, self.prompt + self.answer - 1)

    def _of_a_mini_batch(self, count: int, ranks: int) -> int:
        config = self.loaded.config
        return math.ceil(count / max(1, min(config.learner.mini_batches, config.trainer.groups_per_step)) / ranks)

    def _engine(self, device: str, count: int = 0) -> Iterator[MemoryPart]:
        """An embedded engine, or one of `count` in processes of their own. On a CPU, keys and values stay while the
        learner trains."""
        config, settings = self.loaded.config, self.loaded.config.rollout.engine.embedded
        demand = Demand(self.loaded, self.prompt + self.answer, max(1, count))
        with self._shape(device) as shape:
            by_load = [(engine_memory(shape, load, native=settings.native), load) for load in set(demand.loads())]
            weights = shape.size
        memory, load = max(by_load, key=lambda pair: pair[0].keys_and_values)
        passing = max(memory.passing for memory, _ in by_load)
        kept = When.ALWAYS if device == CPU else When.SAMPLING
        if count:
            yield MemoryPart("weights", weights, "choose a smaller model")
        if memory.copy:
            off = "set rollout.engine.native to false, which decodes more slowly"
            yield MemoryPart("copy of the weights for native steps", memory.copy, off, When.SAMPLING)
        size = f"{load.sequences:,} sequences of {load.prompt + load.answer:,} tokens"
        yield MemoryPart(f"keys and values of {size}", memory.keys_and_values, halving(settings.max_batch), kept)
        if not config.trainer.deterministic or count:
            cached = demand.cached()
            halved = f"set rollout.engine.cache_tokens to {settings.cache_tokens // 2}"
            yield MemoryPart(f"cache of {cached:,} earlier tokens", cached * memory.per_token, halved, kept)
        yield MemoryPart("a pass over prompts", passing, "shorten prompts", When.SAMPLING)

    def _on_the_way(self) -> MemoryPart:
        """New weights are a file in memory, and the one before it is written over by the next."""
        config = self.loaded.config
        with self._shape(META) as shape:
            is_whole = config.learner.lora is None or not config.rollout.engine.takes_adapters
            sent = shape.size if is_whole else sum(p.nbytes for p in self._trained(shape).parameters.values())
        return MemoryPart("weights on their way to engines", 2 * sent, SMALLER_STATE)

    def _shape(self, device: str, path: str | None = None) -> AbstractContextManager[ModelShape]:
        return _shape(self.loaded, self.cache, device, path)


def _shape(loaded: Loaded, cache: Path, device: str, path: str | None = None) -> AbstractContextManager[ModelShape]:
    model = loaded.config.model
    return model_shape(
        parts.model_source(loaded, path or model.path),
        cache=cache,
        dtype=model.dtype,
        max_context=model.max_context,
        device_type=device.partition(":")[0],
    )


def _base(device: str) -> Iterator[MemoryPart]:
    """What a process takes besides its model, as far as it is on the device."""
    if device == CPU:
        yield MemoryPart("Python, torch and transformers", anonymous_memory(), "")
        yield MemoryPart("their buffers at work", AT_WORK, "")
