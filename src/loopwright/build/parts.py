"""Each section of the config, turned into the object that it describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loopwright.agents import EnginePolicies, LocalWorker
from loopwright.build.agents import Agents, worker_silence
from loopwright.build.choices import make_filter
from loopwright.config import Loaded, RolloutConfig, RunConfig, SamplingOverrides, TaskSetConfig, model_folder
from loopwright.core.capacity import rollouts_in_flight
from loopwright.core.in_flight import RolloutsInFlight
from loopwright.core.redaction import Redactor
from loopwright.core.seeds import derive_seed
from loopwright.core.staleness import horizon
from loopwright.data import EpochSampler, open_source
from loopwright.engines.timed import TimedClient
from loopwright.models.device import chosen_device
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.outline import ModelOutline, outline_of
from loopwright.models.runtime import all_threads, configure, half_of_the_threads
from loopwright.models.tokenizer import ModelSpec
from loopwright.ports import Judger, Lockstep, PolicyMaker, RolloutWorker, StalePolicy, StreamingEngine
from loopwright.produce import (
    Limits,
    ProduceSettings,
    RolloutRunner,
    TaskSetRuntime,
)
from loopwright.render.choose import make_renderer
from loopwright.trainers.intervals import Intervals
from loopwright.types import EngineCapacity, PauseMode, ProduceKind, Sampling, SyncKind, TrainerKind

Judgers = Mapping[str, Judger]


def judger_names(config: RunConfig) -> list[str]:
    """The judgers that some task set names, each once."""
    return list(dict.fromkeys(task_set.agent.judger for _, task_set in config.all_task_sets()))


def train_sets(loaded: Loaded, judgers: Judgers) -> list[TaskSetRuntime]:
    return [_task_set(loaded, described, judgers, shuffle=True) for described in loaded.config.task_sets]


def eval_sets(loaded: Loaded, judgers: Judgers) -> list[TaskSetRuntime]:
    """The task sets of evaluation. It runs every task once, in the order of the source."""
    described = loaded.config.eval.task_sets if loaded.config.eval else ()
    return [_task_set(loaded, task_set, judgers, shuffle=False) for task_set in described]


def _task_set(loaded: Loaded, described: TaskSetConfig, judgers: Judgers, *, shuffle: bool) -> TaskSetRuntime:
    source = open_source(described.data, loaded.base, loaded.objects)
    seed = derive_seed(loaded.config.trainer.seed, "order", described.name)
    return TaskSetRuntime(
        name=described.name,
        sampler=EpochSampler(source, seed, shuffle=shuffle and described.data.shuffle),
        judger=judgers[described.agent.judger],
        sampling=_sampling(loaded.config.rollout, described.sampling),
        weight=described.weight,
        filter=make_filter(loaded, described),
        produce=described.produce,
    )


def _sampling(rollout: RolloutConfig, own: SamplingOverrides) -> Sampling:
    changed = own.model_dump(exclude_none=True)
    names = ("temperature", "max_new_tokens", "top_k", "top_p", "stop")
    return Sampling(**{name: changed.get(name, getattr(rollout, name)) for name in names})


def make_model(loaded: Loaded, cache: Path, path: str | None = None) -> LoadedModel:
    """Set up torch as the config says, and load the model at `path`, or else that of the config."""
    model = loaded.config.model
    configure(threads=_threads(loaded.config, model.threads), deterministic=loaded.config.trainer.deterministic)
    return model_at(loaded, path or model.path, cache)


def make_outline(loaded: Loaded, cache: Path) -> ModelOutline:
    """What is known of the model of the config without its weights."""
    model = loaded.config.model
    return outline_of(model_source(loaded, model.path), cache=cache, max_context=model.max_context)


def rank_threads(config: RunConfig) -> int:
    """The threads of each rank of the learner: those that one process would have are shared out. An actor has its
    own."""
    if config.model.threads is not None:
        return config.model.threads
    if config.learner.is_on_actors:
        return max(1, int(config.learner.num_cpus_per_rank))
    return max(1, (_threads(config, None) or all_threads()) // config.learner.ranks)


def engine_threads(config: RunConfig) -> int | None:
    """The threads of the engine's process, if it has one. Call this before `make_model`, which changes torch's
    threads."""
    return _threads(config, config.rollout.engine.embedded.threads)


def _threads(config: RunConfig, wanted: int | None) -> int | None:
    """The threads that are wanted. In a disaggregated run, learner and engine get half of them each by default."""
    is_shared = config.trainer.kind is TrainerKind.DISAGGREGATED
    return half_of_the_threads() if wanted is None and is_shared else wanted


def model_at(loaded: Loaded, path: str, cache: Path) -> LoadedModel:
    """The model at `path`, with the dtype, the context length and the device of the config."""
    model, native = loaded.config.model, loaded.config.rollout.engine.embedded.native
    source = model_source(loaded, path)
    return load_model(
        source,
        cache=cache,
        dtype=model.dtype,
        max_context=model.max_context,
        device=chosen_device(model.device, repeatable=loaded.config.trainer.deterministic),
        native=native,
    )


def model_source(loaded: Loaded, path: str) -> str:
    """The source for `load_model`: the folder that `path` leads to, or else the name."""
    folder = model_folder(path, loaded.base)
    return path if folder is None else str(folder)


def make_worker(
    config: RunConfig,
    agents: Agents,
    engine: StreamingEngine,
    model: ModelSpec,
    held: Callable[[], float],
    served: PolicyMaker | None,
) -> LocalWorker:
    """The worker of this process. `held` reads the clock of held seconds; `served` is for agents behind a gateway."""
    renderer = make_renderer(model.tokenizer, config.model.renderer)
    return LocalWorker(agents, EnginePolicies(TimedClient(engine, held), renderer, model.max_context, held), served)


def concurrency(config: RunConfig, engines: Sequence[EngineCapacity], max_context: int) -> int:
    """How many rollouts are in flight at most. How long a rollout gets is not known before it was made, so with `auto`
    each counts as long as the context allows."""
    wanted = config.rollout.concurrency
    return wanted if isinstance(wanted, int) else rollouts_in_flight(engines, max_context)


def make_runner(
    config: RunConfig,
    worker: RolloutWorker,
    lockstep: Lockstep | None,
    redact: Redactor,
    concurrency: int,
    in_flight: RolloutsInFlight | None = None,
) -> RolloutRunner:
    produce = config.produce
    return RolloutRunner(
        worker,
        seed=config.trainer.seed,
        limits=Limits(produce.agent_timeout_seconds, produce.judge_attempts, worker_silence(config)),
        concurrency=concurrency,
        max_attempts=produce.max_attempts,
        lockstep=lockstep,
        redact=redact,
        in_flight=in_flight,
    )


def produce_settings(config: RunConfig) -> ProduceSettings:
    produce = config.produce
    return ProduceSettings(
        groups_per_step=config.trainer.groups_per_step,
        samples_per_task=config.rollout.samples_per_task,
        min_members=produce.min_members,
        failure_budget=produce.failure_budget,
        filter_budget=produce.filter_budget,
        kind=produce.kind,
        horizon=_horizon(config),
        sync_interval=_sync_interval(config),
        over_sample=produce.over_sample,
        tail_batch=produce.tail_batch,
        in_flight=produce.in_flight if produce.kind is ProduceKind.ASYNC else PauseMode.DRAIN,
        last_step=config.trainer.steps,
    )


def stale_policy(config: RunConfig) -> StalePolicy:
    """What happens to old tokens. In a sync run the newest weights make all groups, except what a resume left over."""
    produce = config.produce
    if produce.kind is ProduceKind.SYNC:
        return StalePolicy(horizon=None)
    return StalePolicy(produce.stale, _horizon(config), produce.max_expiries)


def _horizon(config: RunConfig) -> int:
    is_sync = config.produce.kind is ProduceKind.SYNC
    return horizon(0 if is_sync else config.produce.max_staleness, _sync_interval(config))


def _sync_interval(config: RunConfig) -> int:
    """The steps between two weight updates. A colocated engine has the learner's weights after every step."""
    return 1 if config.trainer.kind is TrainerKind.COLOCATE else config.trainer.sync_interval


def intervals(config: RunConfig) -> Intervals:
    evaluate = config.eval.every if config.eval else 0
    return Intervals(
        steps=config.trainer.steps,
        evaluate=evaluate,
        checkpoint=config.trainer.checkpoint_every,
        sync=config.trainer.sync_interval,
        on_demand=config.trainer.sync is SyncKind.ON_DEMAND,
    )
