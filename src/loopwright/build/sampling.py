"""What training, evaluation and plain rollouts share: the user's code, the model, the engine and its runner.

They are opened in two halves, and the run folder is opened in between. So a mistake in the user's code, or a model that
cannot be loaded, does no harm to the run in that folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.build import parts
from loopwright.build.agents import Agents, TaskSetPlace, make_agents, open_agents
from loopwright.build.eval_plans import eval_plans
from loopwright.build.gateway import served_policies
from loopwright.build.hosted_judger import judgers_on
from loopwright.build.programs import warn_of_free_programs
from loopwright.config import Loaded, RunConfig
from loopwright.core.in_flight import RolloutsInFlight
from loopwright.core.redaction import Redactor
from loopwright.engines.torch.engine import TorchEngine
from loopwright.judgers import open_judgers
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.models.outline import ModelOutline
from loopwright.models.tokenizer import ModelSpec
from loopwright.ports import Lockstep, RolloutWorker, StreamingEngine
from loopwright.produce import RolloutRunner, TaskSetRuntime
from loopwright.trainers.evaluator import EvalPlan
from loopwright.types import UNKNOWN_CAPACITY, EngineCapacity

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.worker import LoopCrew
    from loopwright.gateway.policy import SessionPolicies
    from loopwright.gateway.registration import RunModel
    from loopwright.gateway.remote_policy import RemoteSessionPolicies

SessionCounts = Callable[[], dict[str, Any]]
"""What is known of the sessions of a gateway. Nobody is asked for it."""
OnSessions = Callable[[SessionCounts], object]

UserCode = tuple[
    Agents, Sequence[TaskSetRuntime], Sequence[TaskSetRuntime], Sequence[EvalPlan], Mapping[TaskSetPlace, "LoopCrew"]
]
"""The agents in this process, the task sets of training and of evaluation, the eval plans, and the agents on actors."""


@dataclass(frozen=True, slots=True)
class SamplingParts:
    """The user's code, ready to be used, and the tokenizer and context length of the model."""

    loaded: Loaded
    agents: Agents
    train_sets: Sequence[TaskSetRuntime]
    eval_sets: Sequence[TaskSetRuntime]
    eval_plans: Sequence[EvalPlan]
    crews: Mapping[TaskSetPlace, LoopCrew]
    """The actors of the agents that are not in this process."""
    model: ModelSpec

    @property
    def config(self) -> RunConfig:
        return self.loaded.config

    @property
    def is_served(self) -> bool:
        """Whether some agents talk to a gateway."""
        return any(task_set.agent.served for _, task_set in self.config.all_task_sets())

    @property
    def capacity(self) -> EngineCapacity:
        """What an engine elsewhere can hold: it does not say."""
        return UNKNOWN_CAPACITY

    def concurrency(self, engines: Sequence[EngineCapacity]) -> int:
        """How many rollouts are in flight at most, on engines that can hold so much."""
        return parts.concurrency(self.config, engines, self.model.max_context)

    @asynccontextmanager
    async def runner(
        self,
        engine: StreamingEngine,
        lockstep: Lockstep | None = None,
        held: Callable[[], float] = lambda: 0.0,
        *,
        redact: Redactor,
        concurrency: int,
        elsewhere: AbstractAsyncContextManager[RemoteSessionPolicies] | None = None,
        reached: RunModel | None = None,
        in_flight: RolloutsInFlight | None = None,
        on_sessions: OnSessions = lambda sessions: None,
    ) -> AsyncIterator[RolloutRunner]:
        """`lockstep` makes a deterministic run repeatable. `held` says for how many seconds in total the engine has
        answered nobody. `redact` removes secrets from rollouts. `concurrency` rollouts run at a time. `in_flight` is
        told which ones run. For the others see `worker`."""
        lockstep = lockstep if self.config.trainer.deterministic else None
        opening = self.worker(engine, held, elsewhere=elsewhere, reached=reached, on_sessions=on_sessions)
        async with opening as worker:
            yield parts.make_runner(self.config, worker, lockstep, redact, concurrency, in_flight)

    @asynccontextmanager
    async def worker(
        self,
        engine: StreamingEngine,
        held: Callable[[], float],
        *,
        elsewhere: AbstractAsyncContextManager[RemoteSessionPolicies] | None = None,
        reached: RunModel | None = None,
        on_sessions: OnSessions = lambda sessions: None,
    ) -> AsyncIterator[RolloutWorker]:
        """If agents talk to a gateway, one is opened, or `elsewhere` gives sessions of one that is reached over HTTP.
        Agents on actors reach the model as `reached` says. `on_sessions` gets what counts the sessions of
        the gateway."""
        async with AsyncExitStack() as stack:
            served: SessionPolicies | RemoteSessionPolicies | None = None
            sessions: RemoteSessionPolicies | None = None
            if elsewhere is not None:
                served = sessions = await stack.enter_async_context(elsewhere)
            elif self.is_served:
                served = await stack.enter_async_context(served_policies(self.config, engine, self.model, held))
            if served is not None:
                on_sessions(served.standing)
            worker: RolloutWorker = parts.make_worker(self.config, self.agents, engine, self.model, held, served)
            if self.crews and reached is not None:
                from loopwright.cluster.worker import PlacedWorker

                opening = PlacedWorker.open(self.crews, worker, reached, sessions)
                worker = await stack.enter_async_context(opening)
            yield worker


@dataclass(frozen=True, slots=True)
class LocalSamplingParts(SamplingParts):
    """SamplingParts of a process that computes, or whose ranks do."""

    model: LoadedModel | ModelOutline
    compute: ComputeThread
    cache: Path
    """Where converted models are kept."""
    engine_threads: int | None = None
    """The threads of an engine in a process of its own."""
    cluster: Cluster | None = None

    @property
    def capacity(self) -> EngineCapacity:
        """What the embedded engine can hold, here or in a process of its own. Its memory for keys and values grows with
        its batch."""
        return EngineCapacity(sequences=self.config.rollout.engine.embedded.max_batch)


@dataclass(frozen=True, slots=True)
class RankedSamplingParts(LocalSamplingParts):
    """LocalSamplingParts whose model is in the ranks of the learner."""

    model: ModelOutline


@dataclass(frozen=True, slots=True)
class LoadedSamplingParts(LocalSamplingParts):
    """LocalSamplingParts whose model is loaded in this process."""

    model: LoadedModel

    def embedded_engine(self, version: int) -> AbstractAsyncContextManager[TorchEngine]:
        """An engine on the parameters of `model`; its first tokens are sampled by weights `version`."""
        engine = self.config.rollout.engine.embedded
        # A resumed run starts with an empty cache, and must give the same bits as one that was not killed (D3).
        cache_tokens = 0 if self.config.trainer.deterministic else engine.cache_tokens
        return TorchEngine(
            self.model, self.compute, max_batch=engine.max_batch, cache_tokens=cache_tokens, version=version
        )


SamplingOfRun = LoadedSamplingParts | RankedSamplingParts


@asynccontextmanager
async def open_sampling_parts(loaded: Loaded, model: ModelSpec) -> AsyncIterator[SamplingParts]:
    """Load the user's own code, for a model whose weights are elsewhere."""
    async with AsyncExitStack() as stack:
        yield SamplingParts(loaded, *await _user_code(loaded, stack), model)


@asynccontextmanager
async def open_local_sampling_parts(
    loaded: Loaded, cache: Path, cluster: Cluster | None = None
) -> AsyncIterator[LoadedSamplingParts]:
    """Load the user's own code first, then the model. `cache` is where converted models are kept. What the config has
    on actors is on those of `cluster`; without one, everything is here."""
    async with AsyncExitStack() as stack:
        task_sets = await _user_code(loaded, stack, cluster)
        compute = stack.enter_context(ComputeThread())
        threads = await compute.run(parts.engine_threads, loaded.config)
        model = await compute.run(parts.make_model, loaded, cache)
        yield LoadedSamplingParts(loaded, *task_sets, model, compute, cache, threads, cluster)


@asynccontextmanager
async def open_ranked_sampling_parts(
    loaded: Loaded, cache: Path, cluster: Cluster | None = None
) -> AsyncIterator[RankedSamplingParts]:
    """The same for a learner of ranks, which load the model: here it is only looked at."""
    async with AsyncExitStack() as stack:
        task_sets = await _user_code(loaded, stack, cluster)
        compute = stack.enter_context(ComputeThread())
        threads = await compute.run(parts.engine_threads, loaded.config)
        model = await compute.run(parts.make_outline, loaded, cache)
        yield RankedSamplingParts(loaded, *task_sets, model, compute, cache, threads, cluster)


async def _user_code(loaded: Loaded, stack: AsyncExitStack, cluster: Cluster | None = None) -> UserCode:
    """The user's code, open until the stack ends."""
    config = loaded.config
    judgers = await stack.enter_async_context(
        open_judgers(
            parts.judger_names(config),
            config.judgers,
            loaded.base,
            loaded.secrets,
            loaded.objects,
            judgers_on(cluster, loaded),
        )
    )
    warn_of_free_programs(config)
    crews = await stack.enter_async_context(_loop_crews(loaded, cluster))
    agents = make_agents(loaded, lambda place: place not in crews)
    train_sets, eval_sets = parts.train_sets(loaded, judgers), parts.eval_sets(loaded, judgers)
    plans = eval_plans(loaded)
    await open_agents(agents, stack)
    filters: list[object] = [task_set.filter for task_set in (*train_sets, *eval_sets)]
    for part in filters:
        if isinstance(part, AbstractAsyncContextManager):
            await stack.enter_async_context(part)
    return agents, train_sets, eval_sets, plans, crews


def _loop_crews(
    loaded: Loaded, cluster: Cluster | None
) -> AbstractAsyncContextManager[Mapping[TaskSetPlace, LoopCrew]]:
    if cluster is None:
        return nullcontext({})
    from loopwright.build.hosted_worker import open_loop_crews

    return open_loop_crews(loaded, cluster)
