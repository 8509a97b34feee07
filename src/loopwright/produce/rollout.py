"""The boundary round agents (R1, R2).

An agent's exception and an engine's each become a typed outcome here, once. A failure is never a reward. An
interruption is no failure: what the agent did so far is a partial rollout. Our own bugs are not outcomes: they leave
through here and stop the run. So do cancellations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from loopwright.core.agent_time import AgentTime
from loopwright.core.blame import blame
from loopwright.errors import AgentError, ContextError, EngineError, FilterError, InterruptionError, LoopwrightError
from loopwright.ports import AgentLoop, Policy
from loopwright.produce.chain_choice import ChainChoice
from loopwright.types import (
    Episode,
    EpisodeDrift,
    Failed,
    FailureCause,
    Message,
    OnAgentError,
    RecordedChain,
    Reward,
    Rollout,
    RolloutKey,
    Scored,
    StopReason,
    Task,
    Timing,
    Unscored,
)


class RecordingPolicy(Policy, Protocol):
    """A policy for one rollout that can tell afterwards what happened."""

    @property
    def was_answered(self) -> bool:
        """Whether the model has said anything."""
        ...

    @property
    def transcript(self) -> Sequence[Message]:
        """The latest conversation, with the model's reply."""
        ...

    @property
    def fault(self) -> Exception | None:
        """What kept the model from answering, whatever the agent made of it."""
        ...

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode: ...

    @property
    def recorded(self) -> Sequence[RecordedChain]:
        """What there is to say of the episode's chains, in their order."""
        ...

    async def drift(self) -> EpisodeDrift | None:
        """What tokenising the episode's text again would get wrong, if that is to be known."""
        ...


async def run_rollout(
    key: RolloutKey,
    task: Task,
    *,
    loop: AgentLoop,
    policy: RecordingPolicy,
    timeout_seconds: float,
    on_agent_error: OnAgentError = "fail",
    slot: AbstractAsyncContextManager[object] | None = None,
    held: Callable[[], float] = lambda: 0.0,
    resume_from: Rollout | None = None,
    train: ChainChoice | None = None,
) -> Rollout:
    """Run the agent once; what it did is unscored, unless its reward needs no judge. `slot` is held while it runs.

    `held` says for how many seconds the engines have answered nobody: they do not count against the agent.
    `resume_from` is the partial rollout that `policy` goes on with; the agent's seconds are counted on from it.
    `train` chooses the chains that are trained; without it, all are.
    """
    async with slot or nullcontext():
        before = resume_from.timing if resume_from else Timing(time.time())
        clock = time.monotonic()
        ended = await _run_agent(task, loop, policy, AgentTime(timeout_seconds, held), on_agent_error)
        timing = Timing(before.started, before.agent_seconds + time.monotonic() - clock)
    settled = ended if isinstance(ended, _Settled) else _Settled(Unscored(), ended)
    try:
        episode = await _completed(settled.episode, policy, train) if settled.episode else None
    except FilterError as error:
        detail = f"task {task.id!r}: {error.message}"
        return Rollout(key, task, None, Failed(FailureCause.AGENT, str(error.facts["error"]), detail), timing)
    return Rollout(key, task, episode, settled.reward, timing)


@dataclass(frozen=True, slots=True)
class _Settled:
    """A run whose reward needs no judge, or not yet: it failed, or the config says what it is worth."""

    reward: Reward
    episode: Episode | None = None


async def _completed(episode: Episode, policy: RecordingPolicy, train: ChainChoice | None) -> Episode:
    """The episode, with what can be said of it now that its agent is through. A partial one goes on."""
    if episode.stop is StopReason.ABORTED:
        return episode
    chains = episode.chains
    # An agent that broke before it asked has none, and may still have a reward.
    if train is not None and chains:
        chosen = await train.choose(policy.recorded)
        chains = tuple(replace(chain, trained=number in chosen) for number, chain in enumerate(chains))
    drift = await policy.drift()
    if chains is episode.chains and drift is None:
        return episode
    return replace(episode, chains=chains, drift=drift)


async def _run_agent(
    task: Task, loop: AgentLoop, policy: RecordingPolicy, deadline: AgentTime, rule: OnAgentError
) -> Episode | _Settled:
    """Run the loop to its end, whatever that is; an Episode is to be judged."""
    try:
        async with deadline:
            messages = await loop.run(task, policy)
        if policy.fault is not None:
            raise policy.fault
        if not policy.was_answered:
            raise _never_asked(task)
        return policy.episode(messages)
    except Exception as error:
        # The policy's fault comes first: an agent may have wrapped it in an exception of its own.
        reason = policy.fault or error
        if isinstance(reason, InterruptionError):
            return policy.episode(policy.transcript, StopReason.ABORTED)
        if isinstance(reason, EngineError):
            return _Settled(Failed(FailureCause.INFRA, type(reason).__name__, reason.message))
        if isinstance(reason, ContextError):
            detail = f"task {task.id!r}: {reason.message}"
            return _Settled(Failed(FailureCause.TASK, type(reason).__name__, detail))
        if reason is policy.fault or _is_ours(reason):
            raise reason from reason.__cause__
        if deadline.expired():
            return _out_of_time(task, policy, deadline.seconds)
        return _agent_raised(error, task, loop, policy, rule)


def _never_asked(task: Task) -> AgentError:
    """There is nothing of the model's to grade, and nothing to train on."""
    return AgentError(
        f"the agent ended without an answer of the model on task {task.id!r}",
        remedy="let it ask the model: through its policy, or at the base URL that it was given",
    )


def _is_ours(error: Exception) -> bool:
    return isinstance(error, LoopwrightError) and not isinstance(error, AgentError)


def _out_of_time(task: Task, policy: RecordingPolicy, seconds: float) -> Episode | _Settled:
    """Time is an agent's own budget, so it is graded; but a model that never answered is no work of the agent's."""
    if policy.was_answered:
        return policy.episode(policy.transcript, StopReason.BUDGET)
    detail = f"task {task.id!r}: the model gave no reply within the agent's {seconds:g} s"
    return _Settled(Failed(FailureCause.INFRA, "Timeout", detail))


def _agent_raised(
    error: Exception, task: Task, loop: AgentLoop, policy: RecordingPolicy, rule: OnAgentError
) -> Episode | _Settled:
    if isinstance(rule, int | float):
        episode = policy.episode(policy.transcript or task.messages)
        return _Settled(Scored(float(rule), {"agent_error": 1.0}), episode)
    if rule == "grade" and policy.was_answered:
        return policy.episode(policy.transcript)
    words = error.message if isinstance(error, AgentError) else blame(error, loop.run)
    detail = f"agent {type(loop).__name__} on task {task.id!r}: {words}"
    return _Settled(Failed(FailureCause.AGENT, type(error).__name__, detail))
