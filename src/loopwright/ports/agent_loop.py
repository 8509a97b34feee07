"""The port for agents: a loop turns one task into a transcript by asking the policy for replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loopwright.types import (
    Failed,
    FinishReason,
    Message,
    Parsed,
    ProgramOutput,
    Scored,
    StopReason,
    Task,
    Tool,
    ToolCall,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model. Append `message` to the conversation before asking again.

    `reasoning` and `tool_calls` are separated from the text if tools were offered. `tokens` counts the sampled ones.
    """

    text: str
    finish: FinishReason
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: int = 0

    @property
    def message(self) -> Message:
        return Parsed(self.text, self.reasoning, self.tool_calls).message


class Policy(Protocol):
    """The model, as one rollout sees it. It records every token that goes in and comes out."""

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        seconds: float | None = None,
    ) -> Reply:
        """Sample the next assistant message. With `tools`, the model may call them, and the reply says which.

        A conversation that extends the previous one, with the same tools, continues from the tokens that were sampled;
        any other starts a new token chain. A call that takes longer than `seconds` raises OutOfTimeError; seconds in
        which the engines answer nobody do not count. When the rollout's own time is up, the agent is cancelled.
        """
        ...

    def own_seconds(self) -> float:
        """How many seconds the agent has worked so far. Waiting for engines that answer nobody, for example during
        weight updates, does not count. The clock may stand still during a model call."""
        ...

    def out_of_budget(self) -> None:
        """The agent stops because its own budget is used up. Its episode says so, and is graded anyway."""
        ...


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What a loop may return instead of a transcript alone: it knows its own reward, or why there is none.

    `reward` None: the judger scores it. `stop` None: the policy knows how it ended.
    """

    messages: Sequence[Message]
    reward: Scored | Failed | None = None
    stop: StopReason | None = None
    output: ProgramOutput | None = None


class AgentLoop(Protocol):
    """Runs one task. A loop is shared by all rollouts of its task set, so it keeps no state between runs.

    A loop with the attribute `resumable = True` promises: if it runs again on the same task and gets the same replies,
    it asks the same questions. Such a rollout can be interrupted, and continues later from the tokens that it has.
    Other loops are never interrupted; during a weight update they see one slower reply.
    """

    async def run(self, task: Task, policy: Policy) -> Sequence[Message] | AgentResult:
        """Work on the task and return the whole transcript, or a result that holds it; the policy has recorded its
        tokens.

        Whatever this raises is handled as `agent.on_agent_error` says: by default the rollout fails, without a reward.
        """
        ...
