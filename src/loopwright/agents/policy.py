"""The model as one rollout sees it, over an engine.

The invariants: every token that goes in and comes out is recorded as the engine had it (T1, T4); a conversation that
continues a recorded one continues its token stream and is not rendered again (T5); a request never asks for more than
the context can hold (S5). What kept the model from answering is remembered as a fault, whatever the agent makes of it.
An interrupted rollout is such a fault too: its policy keeps what was sampled, and the policy that goes on gives it out
again, so that every token is sampled, and recorded, once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loopwright.agents.earlier import Earlier
from loopwright.agents.transcript import transcript_of
from loopwright.core.chains import chains_of
from loopwright.core.seeds import derive_seed
from loopwright.errors import ContextError, EngineError, InterruptionError
from loopwright.ports import Engine, Renderer, Reply
from loopwright.types import (
    Episode,
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    Sampling,
    StopReason,
    TokenChain,
    Tool,
    Turn,
)


@dataclass(frozen=True, slots=True)
class _Said:
    """A conversation up to and including a sampled reply, the tools that it had, and the token stream behind it."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    stream: tuple[int, ...]


class EnginePolicy:
    """A `Policy` for one rollout; it is used once. Calls may overlap, as when an agent asks sub-agents at once.

    With `resumable`, an engine that is paused interrupts the rollout; `resume_from` are the chains of one that was.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        sampling: Sampling,
        request_prefix: str,
        max_context: int,
        *,
        resumable: bool = False,
        resume_from: Sequence[TokenChain] = (),
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        stops = dict.fromkeys((*sampling.stop_token_ids, *renderer.stop_token_ids))
        self._sampling = replace(sampling, stop_token_ids=tuple(stops))
        self._prefix = request_prefix
        self._max_context = max_context
        self._resumable = resumable
        self._earlier = Earlier(resume_from, renderer)
        self._interruption: InterruptionError | None = None
        self._calls = 0
        self._turns: dict[int, Turn] = {}
        self._said: list[_Said] = []
        self._transcript: tuple[Message, ...] = ()
        self._finish = FinishReason.STOP
        self._stop: StopReason | None = None
        self._faults: dict[int, Exception] = {}
        self._unfit: ContextError | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The model calls that were answered, in the order in which they were made."""
        return tuple(turn for _, turn in sorted(self._turns.items()))

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The conversation of the latest call, with its reply if there was one."""
        return self._transcript

    @property
    def fault(self) -> Exception | None:
        """What the engine raised, unless a call that was made afterwards was answered; or that no prompt ever fitted.

        An agent may have wrapped it in its own exception, or swallowed it.
        """
        raised = next(iter(self._faults.values()), None)
        return raised or (None if self._turns else self._unfit)

    async def reply(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), max_new_tokens: int | None = None
    ) -> Reply:
        number, self._calls = self._calls, self._calls + 1
        asked = copy.deepcopy(transcript_of(tuple(messages), verb="asked with"))
        self._transcript = asked
        prompt = self._prompt(asked, tuple(tools))
        room = self._max_context - len(prompt)
        if room <= 0:
            self._unfit = self._unfit or _does_not_fit(len(prompt), self._max_context)
        limits = [self._sampling.max_new_tokens, room]
        budget = min(limits if max_new_tokens is None else [*limits, max_new_tokens])
        if budget <= 0:
            self._finish = FinishReason.LENGTH
            return Reply("", FinishReason.LENGTH)
        sampling = replace(self._sampling, max_new_tokens=budget, seed=derive_seed(self._sampling.seed, number))
        request = GenerateRequest(f"{self._prefix}/{number}", prompt, sampling, self._resumable)
        turn = await self._sample(number, request)
        reply = self._read(turn, tools, number)
        self._transcript = (*asked, reply.message)
        self._said.append(_Said(self._transcript, tuple(tools), (*prompt, *turn.ids)))
        return reply

    def out_of_budget(self) -> None:
        self._stop = StopReason.BUDGET

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode:
        """The recorded tokens under the agent's transcript. Without `stop`, a last reply cut by length is a budget."""
        cut = StopReason.BUDGET if self._finish is FinishReason.LENGTH else StopReason.DONE
        return Episode(transcript_of(messages, verb="returned"), chains_of(self.turns), stop or self._stop or cut)

    def _prompt(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> tuple[int, ...]:
        same_tools = (said for said in self._said if said.tools == tools)
        continued = [said for said in same_tools if messages[: len(said.messages)] == said.messages]
        if continued:
            longest = max(continued, key=lambda said: len(said.messages))
            new = messages[len(longest.messages) :]
            extended = self._renderer.extend(longest.stream, longest.messages, new, tools)
            if extended is not None:
                return extended
        return self._renderer.render(messages, tools)

    def _read(self, turn: Turn, tools: Sequence[Tool], number: int) -> Reply:
        """The reply as the agent sees it. An agent that offers no tools reads the text as it is."""
        if not tools:
            return Reply(self._renderer.text(turn.ids), turn.finish, tokens=len(turn.ids))
        parsed = self._renderer.parse(turn.ids, tools, turn.prompt_ids)
        calls = enumerate(parsed.tool_calls)
        named = tuple(replace(call, id=call.id or f"call_{number}_{place}") for place, call in calls)
        return Reply(parsed.content, turn.finish, parsed.reasoning, named, len(turn.ids))

    async def _sample(self, number: int, request: GenerateRequest) -> Turn:
        try:
            if self._interruption is not None:
                raise self._interruption
            sampled = await self._generate(request)
            turn = Turn(request.prompt_ids, sampled.ids, sampled.logprobs, sampled.versions, sampled.finish)
            if sampled.finish is FinishReason.ABORT:
                raise self._cut_short(number, request, turn)
        except Exception as error:
            # Known by the first call that could be made after it: only such a call, answered, makes it good.
            self._faults.setdefault(self._calls, error)
            raise
        self._faults = {after: fault for after, fault in self._faults.items() if after > number}
        self._finish = turn.finish
        self._turns[number] = turn
        return turn

    async def _generate(self, request: GenerateRequest) -> Generation:
        earlier = self._earlier.take(request)
        if earlier is None:
            return await self._engine.generate(request)
        if earlier.finish is not FinishReason.ABORT:
            return earlier
        return earlier.then(await self._engine.generate(request.after(earlier)))

    def _cut_short(self, number: int, request: GenerateRequest, turn: Turn) -> EngineError:
        if not request.resumable:
            return EngineError(f"request {request.id} was aborted", remedy="nothing to do: the rollout is tried again")
        if turn.ids:
            self._turns[number] = turn
        self._interruption = InterruptionError(
            f"request {request.id} was interrupted after {len(turn.ids)} tokens",
            remedy="let this error out of the agent: the rollout goes on later, from these tokens",
        )
        return self._interruption


def _does_not_fit(tokens: int, max_context: int) -> ContextError:
    return ContextError(
        f"a prompt of {tokens} tokens does not fit model.max_context {max_context} with room for an answer",
        remedy="shorten the prompt, leave such tasks out, or raise model.max_context if the model allows it",
        tokens=tokens,
        max_context=max_context,
    )
