"""Each section of the config, turned into the object that it describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from loopwright.agents import EnginePolicy, SingleTurn, load_agent, load_callable
from loopwright.build.tools import make_tool_loop
from loopwright.config import (
    CallableAgent,
    Loaded,
    PythonAgent,
    RolloutConfig,
    RunConfig,
    SamplingOverrides,
    SingleTurnAgent,
    TaskSetConfig,
    ToolAgent,
    model_folder,
)
from loopwright.core.redaction import Redactor
from loopwright.core.seeds import derive_seed
from loopwright.core.staleness import horizon
from loopwright.data import EpochSampler, open_source
from loopwright.models.load import Language, LoadedModel, load_model
from loopwright.models.runtime import configure, half_of_the_threads
from loopwright.ports import AgentLoop, Engine, GroupJudger, Judger, Lockstep, StalePolicy
from loopwright.produce import (
    ChainChoice,
    Filter,
    Limits,
    MainChains,
    NoSignal,
    PolicyFactory,
    ProduceSettings,
    RecordingPolicy,
    RolloutRunner,
    TaskSetRuntime,
    UserChoice,
    UserFilter,
)
from loopwright.render.choose import make_renderer
from loopwright.trainers.intervals import Intervals
from loopwright.types import PauseMode, ProduceKind, Sampling, SyncKind, TokenChain, TrainerKind

Judgers = Mapping[str, Judger | GroupJudger]


def judger_names(config: RunConfig) -> list[str]:
    """The judgers that some task set names, each once."""
    return list(dict.fromkeys(task_set.agent.judger for _, task_set in config.all_task_sets()))


def train_sets(loaded: Loaded, judgers: Judgers) -> list[TaskSetRuntime]:
    return [
        replace(_task_set(loaded, described, judgers, shuffle=True), train=_chain_choice(loaded, described))
        for described in loaded.config.task_sets
    ]


def eval_sets(loaded: Loaded, judgers: Judgers) -> list[TaskSetRuntime]:
    """Evaluation runs every task once, so their order is the source's own."""
    described = loaded.config.eval.task_sets if loaded.config.eval else ()
    return [_task_set(loaded, task_set, judgers, shuffle=False) for task_set in described]


def _task_set(loaded: Loaded, described: TaskSetConfig, judgers: Judgers, *, shuffle: bool) -> TaskSetRuntime:
    source = open_source(described.data, loaded.base, loaded.objects)
    seed = derive_seed(loaded.config.trainer.seed, "order", described.name)
    loop = _agent(loaded, described)
    return TaskSetRuntime(
        name=described.name,
        sampler=EpochSampler(source, seed, shuffle=shuffle and described.data.shuffle),
        loop=loop,
        judger=judgers[described.agent.judger],
        sampling=_sampling(loaded.config.rollout, described.sampling),
        weight=described.weight,
        resumable=getattr(loop, "resumable", False) is True,
        served=isinstance(described.agent, CallableAgent),
        on_agent_error=described.agent.on_agent_error,
        filter=_filter(loaded, described),
        produce=described.produce,
    )


def _agent(loaded: Loaded, described: TaskSetConfig) -> AgentLoop:
    match described.agent:
        case PythonAgent():
            return load_agent(described.agent.path, loaded.base, described.agent.args, loaded.objects)
        case CallableAgent() as own:
            return load_callable(own.path, loaded.base, own.args, own.max_tokens, loaded.objects)
        case ToolAgent():
            return make_tool_loop(described.agent, loaded.base)
        case SingleTurnAgent():
            return SingleTurn(described.agent.system)


def _filter(loaded: Loaded, described: TaskSetConfig) -> Filter | None:
    match described.filter or loaded.config.produce.filter:
        case "none":
            return None
        case "no_signal":
            return NoSignal()
        case path:
            return UserFilter(path, loaded.base, loaded.config.produce.filter_timeout_seconds)


def _chain_choice(loaded: Loaded, described: TaskSetConfig) -> ChainChoice | None:
    match described.agent:
        case PythonAgent(train="main") | CallableAgent(train="main"):
            return MainChains()
        case PythonAgent(train=path) | CallableAgent(train=path) if path != "all":
            return UserChoice(path, loaded.base, loaded.config.produce.filter_timeout_seconds)
        case _:
            return None


def _sampling(rollout: RolloutConfig, own: SamplingOverrides) -> Sampling:
    changed = own.model_dump(exclude_none=True)
    names = ("temperature", "max_new_tokens", "top_k", "top_p", "stop")
    return Sampling(**{name: changed.get(name, getattr(rollout, name)) for name in names})


def make_model(loaded: Loaded, cache: Path, path: str | None = None) -> LoadedModel:
    """The model at `path`, or else that of the config, in a process that computes as the config says."""
    model = loaded.config.model
    configure(threads=_threads(loaded.config, model.threads), deterministic=loaded.config.trainer.deterministic)
    return model_at(loaded, path or model.path, cache)


def engine_threads(config: RunConfig) -> int | None:
    """Those of the engine's process, if it has one. To be asked before the model is made."""
    return _threads(config, config.rollout.engine.threads)


def _threads(config: RunConfig, wanted: int | None) -> int | None:
    """Learner and engine share the machine when they compute at the same time."""
    is_shared = config.trainer.kind is TrainerKind.DISAGGREGATED
    return half_of_the_threads() if wanted is None and is_shared else wanted


def model_at(loaded: Loaded, path: str, cache: Path) -> LoadedModel:
    """The model at `path`, with the numbers and the context of the run's own."""
    model, native = loaded.config.model, loaded.config.rollout.engine.native
    source = model_source(loaded, path)
    return load_model(source, cache=cache, dtype=model.dtype, max_context=model.max_context, native=native)


def model_source(loaded: Loaded, path: str) -> str:
    """A model as `load_model` knows it: the folder that `path` leads to, or else its name."""
    folder = model_folder(path, loaded.base)
    return path if folder is None else str(folder)


def make_runner(
    config: RunConfig,
    engine: Engine,
    model: Language,
    lockstep: Lockstep | None,
    served: PolicyFactory | None,
    held: Callable[[], float],
    redact: Redactor,
) -> RolloutRunner:
    renderer = make_renderer(model.tokenizer, config.model.renderer)

    def policy(
        prefix: str, sampling: Sampling, *, resumable: bool, resume_from: Sequence[TokenChain]
    ) -> RecordingPolicy:
        return EnginePolicy(
            engine,
            renderer,
            sampling,
            prefix,
            model.max_context,
            resumable=resumable,
            resume_from=resume_from,
            held=held,
        )

    return RolloutRunner(
        policy,
        seed=config.trainer.seed,
        limits=Limits(config.produce.agent_timeout_seconds, config.produce.judge_attempts),
        concurrency=config.rollout.concurrency,
        max_attempts=config.produce.max_attempts,
        lockstep=lockstep,
        served=served,
        held=held,
        redact=redact,
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
    """In a sync run every step trains what the newest weights have made; only what a resume left over is older."""
    produce = config.produce
    if produce.kind is ProduceKind.SYNC:
        return StalePolicy(horizon=None)
    return StalePolicy(produce.stale, _horizon(config), produce.max_expiries)


def _horizon(config: RunConfig) -> int:
    is_sync = config.produce.kind is ProduceKind.SYNC
    return horizon(0 if is_sync else config.produce.max_staleness, _sync_interval(config))


def _sync_interval(config: RunConfig) -> int:
    """A colocated engine has the learner's own weights, and those of each step at once."""
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
