"""The worker of this process, and the boundary around agents (R1, R2).

Exceptions of agents and of engines become typed outcomes here, once. A failure is never a reward. An interruption is
not a failure: what the agent did so far is a partial rollout. Our own bugs are not outcomes: they are raised and stop
the run. So are cancellations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loopwright.agents.transcript import own_reward
from loopwright.core.blame import blame
from loopwright.core.timeouts import ClockTimeout
from loopwright.errors import (
    AgentError,
    ContextError,
    EngineError,
    FilterError,
    InterruptionError,
    JudgeError,
    LoopwrightError,
    NoModelCallError,
    OutOfTimeError,
    SetupError,
)
from loopwright.ports import AgentLoop, AgentResult, ChainChoice, PolicyMaker, RecordingPolicy
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    Message,
    OnAgentError,
    Reward,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Scored,
    Split,
    StopReason,
    Task,
    Timing,
    Unscored,
)

LEAST_HELD_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The agent of one task set: its loop, and how its exceptions are handled.

    A `resumable` loop may be interrupted, and continues from its tokens. A `served` one talks to a gateway. One that
    `keeps_time` ends its agent itself when its time is up. `train` chooses the chains that are trained; without it, all
    are.
    """

    loop: AgentLoop
    resumable: bool = False
    served: bool = False
    keeps_time: bool = False
    on_agent_error: OnAgentError = "fail"
    train: ChainChoice | None = None


class LocalWorker:
    """A `RolloutWorker` in this process. It knows the agent of each task set.

    `policies` is for agents that talk to a policy, `served` for those that talk to a gateway.
    """

    def __init__(
        self,
        agents: Mapping[tuple[Split, str], AgentSetup],
        policies: PolicyMaker,
        served: PolicyMaker | None = None,
    ) -> None:
        self._agents = agents
        self._policies = policies
        self._served = served or policies

    async def run(self, request: RolloutRequest) -> Rollout:
        agent = self._agents[request.split, request.task_set]
        before = request.resume_from if agent.resumable else None
        started, seconds_before = (before.timing.started, before.timing.agent_seconds) if before else (time.time(), 0.0)
        begun = time.monotonic()
        policies = self._policies_of(request.split, request.task_set)
        if (made := policies.completed(request)) is not None:
            return made
        policy = policies.policy(request, resumable=agent.resumable)
        limit = ClockTimeout(math.inf if agent.keeps_time else request.seconds, policy.own_seconds)
        try:
            async with limit:
                policy.watch_time(limit.look_soon)
                result = await agent.loop.run(request.task, policy)
            if policy.fault is not None:
                raise policy.fault
            if not policy.was_answered:
                raise _never_asked(request.task)
            outcome = _result(result, policy)
        except Exception as error:
            outcome = _after_error(error, request, agent, policy, limit)
        finally:
            # Limit and policy know each other: left so, only the garbage collector would free the rollout's tokens.
            policy.watch_time(None)
        seconds = time.monotonic() - begun
        held_before = before.timing.held_seconds or 0.0 if before else 0.0
        timing = Timing(started, seconds_before + seconds, held_seconds=held_before + _held(seconds, policy))
        try:
            episode = await _completed(outcome.episode, policy, agent.train) if outcome.episode else None
        except FilterError as error:
            detail = f"task {request.task.id!r}: {error.message}"
            failed = Failed(FailureCause.AGENT, str(error.facts["error"]), detail)
            return Rollout(request.key, request.task, None, failed, timing)
        # A partial rollout that goes on keeps the engines that answered its first part.
        engines = before.engines if before else ()
        made = Rollout(request.key, request.task, episode, outcome.reward, timing, engines=engines)
        await policy.keep(made)
        return made

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        return self._policies_of(split, key.task_set).first_attempt(split, key)

    def stored(self, split: Split, key: RolloutKey) -> None:
        self._policies_of(split, key.task_set).stored(split, key)

    def silent_seconds(self, key: RolloutKey) -> float:
        """Always 0: the rollout runs in this process."""
        return 0.0

    def _policies_of(self, split: Split, task_set: str) -> PolicyMaker:
        return self._served if self._agents[split, task_set].served else self._policies


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a run of the agent ended. Unscored means that it will be judged, or that it continues later."""

    reward: Reward
    episode: Episode | None = None


async def _completed(episode: Episode, policy: RecordingPolicy, train: ChainChoice | None) -> Episode:
    """The episode, with the choice of its chains and its drift. A partial episode continues first."""
    if episode.stop is StopReason.ABORTED:
        return episode
    chains = episode.chains
    # An agent that raised before its first call has no chains, but may still have a reward.
    if train is not None and chains:
        chosen = await train.choose(policy.recorded)
        chains = tuple(replace(chain, trained=number in chosen) for number, chain in enumerate(chains))
    drift = await policy.drift()
    if chains is episode.chains and drift is None:
        return episode
    return replace(episode, chains=chains, drift=drift)


def _after_error(
    error: Exception, request: RolloutRequest, agent: AgentSetup, policy: RecordingPolicy, limit: ClockTimeout
) -> _Outcome:
    """The outcome of a run that raised. Our own bugs are raised again."""
    # The policy's fault comes first, because an agent may have wrapped it in its own exception.
    reason, task = policy.fault or error, request.task
    if isinstance(reason, InterruptionError):
        return _Outcome(Unscored(), policy.episode(policy.transcript, StopReason.ABORTED))
    if isinstance(reason, SetupError):
        return _Outcome(Failed(FailureCause.SETUP, type(reason).__name__, f"task {task.id!r}: {reason.message}"))
    if isinstance(reason, EngineError):
        return _Outcome(Failed(FailureCause.INFRA, type(reason).__name__, reason.message))
    if isinstance(reason, ContextError):
        detail = f"task {task.id!r}: {reason.message}"
        return _Outcome(Failed(FailureCause.TASK, type(reason).__name__, detail))
    if isinstance(reason, OutOfTimeError):
        return _out_of_time(task, policy, request.seconds)
    if reason is policy.fault or _is_ours(reason):
        raise reason from reason.__cause__
    if limit.expired():
        return _out_of_time(task, policy, request.seconds)
    return _agent_raised(error, task, agent, policy)


def _result(result: Sequence[Message] | AgentResult, policy: RecordingPolicy) -> _Outcome:
    if not isinstance(result, AgentResult):
        return _Outcome(Unscored(), policy.episode(result))
    episode, reward = policy.episode(result.messages, result.stop), own_reward(result.reward)
    if isinstance(reward, Scored) and reward.evidence is None and result.output is not None and result.output.verifier:
        reward = replace(reward, evidence=result.output.verifier)
    return _Outcome(reward, replace(episode, output=result.output))


def _held(seconds: float, policy: RecordingPolicy) -> float:
    """For how many of the agent's seconds the engines answered nobody. The policy is a moment younger than the
    rollout, so some milliseconds are none."""
    held = seconds - policy.own_seconds()
    return held if held >= LEAST_HELD_SECONDS else 0.0


def _never_asked(task: Task) -> NoModelCallError:
    return NoModelCallError(
        f"the agent ended without an answer of the model on task {task.id!r}",
        remedy="let it ask the model: through its policy, or at the base URL that it was given",
    )


def _is_ours(error: Exception) -> bool:
    # No judger is asked here: such an error is a score of the agent's own that is no number.
    return isinstance(error, LoopwrightError) and not isinstance(error, AgentError | JudgeError)


def _out_of_time(task: Task, policy: RecordingPolicy, seconds: float) -> _Outcome:
    """Time is the agent's own budget, so the agent is graded. But if the model never answered, the agent has done
    nothing."""
    if policy.was_answered:
        return _Outcome(Unscored(), policy.episode(policy.transcript, StopReason.BUDGET))
    detail = f"task {task.id!r}: the model gave no reply within the agent's {seconds:g} s"
    return _Outcome(Failed(FailureCause.INFRA, "Timeout", detail))


def _agent_raised(error: Exception, task: Task, agent: AgentSetup, policy: RecordingPolicy) -> _Outcome:
    rule = agent.on_agent_error
    if isinstance(rule, int | float):
        episode = policy.episode(policy.transcript or task.messages)
        return _Outcome(Scored(float(rule), {"agent_error": 1.0}), episode)
    if rule == "grade" and policy.was_answered:
        return _Outcome(Unscored(), policy.episode(policy.transcript))
    words = error.message if isinstance(error, AgentError | JudgeError) else blame(error, agent.loop.run)
    detail = f"agent {type(agent.loop).__name__} on task {task.id!r}: {words}"
    return _Outcome(Failed(FailureCause.AGENT, type(error).__name__, detail))
