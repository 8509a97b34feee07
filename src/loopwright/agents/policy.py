"""The model as one rollout sees it, over an engine.

The invariants: Every token that goes in and comes out is recorded as the engine had it (T1, T4). A conversation that
continues a recorded one continues its token stream and is not rendered again (T5). A request never asks for more than
the context can hold (S5). What kept the model from answering is kept as a fault, no matter what the agent does with the
exception. An interruption is such a fault too: the policy keeps what was sampled, and the policy that continues the
rollout returns it again, so that every token is sampled and recorded once.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopwright.agents.earlier import Earlier
from loopwright.agents.transcript import transcript_of
from loopwright.core.partial_answer import PartialAnswer
from loopwright.core.seeds import derive_seed
from loopwright.core.timeouts import NOTHING_LEFT, AgentClock
from loopwright.errors import ContextError, EngineError, InterruptionError, LoopwrightError, OutOfTimeError
from loopwright.ports import ModelClient, Renderer, Reply
from loopwright.render.canonical import canonical_messages, canonical_tools
from loopwright.render.recording.describing import describe_chains
from loopwright.render.recording.model_call import (
    answer_budget,
    answer_sampling,
    planned_turns,
    prepared_call,
    record_turns,
    with_call_ids,
)
from loopwright.render.recording.prepared import Prepared
from loopwright.render.recording.recorder import Recorder, Said
from loopwright.types import (
    NOTHING_YET,
    Episode,
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    RecordedChain,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Split,
    StopReason,
    TokenChain,
    Tool,
    Turn,
)


@dataclass(frozen=True, slots=True)
class EnginePolicies:
    """A `PolicyMaker` over engines that a worker calls directly. `held` reads the clock of held seconds, as far as it
    is known here: for calls that do not return."""

    engine: ModelClient
    renderer: Renderer
    max_context: int
    held: Callable[[], float] = lambda: 0.0

    def policy(self, request: RolloutRequest, *, resumable: bool) -> EnginePolicy:
        before = request.resume_from.episode if request.resume_from and resumable else None
        return EnginePolicy(
            self.engine,
            self.renderer,
            request.sampling,
            str(request.key),
            self.max_context,
            resumable=resumable,
            resume_from=before.chains if before else (),
            seconds=request.seconds,
            held=self.held,
            affinity=request.group,
        )

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        return key.attempt

    def completed(self, request: RolloutRequest) -> None:
        """What an earlier process has recorded ended with it."""

    def stored(self, split: Split, key: RolloutKey) -> None:
        """The policy was the only one who kept its record."""


class EnginePolicy:
    """A `Policy` for one rollout; it is used once. Calls may overlap, for example if an agent runs several sub-agents.

    With `resumable`, a paused engine interrupts the rollout; `resume_from` are the chains of an interrupted one.
    `seconds` is how long the agent may take. `affinity` is that of its requests.
    """

    def __init__(
        self,
        engine: ModelClient,
        renderer: Renderer,
        sampling: Sampling,
        request_prefix: str,
        max_context: int,
        *,
        resumable: bool = False,
        resume_from: Sequence[TokenChain] = (),
        seconds: float = math.inf,
        held: Callable[[], float] = lambda: 0.0,
        affinity: str = "",
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sampling = sampling
        self._prefix = request_prefix
        self._max_context = max_context
        self._resumable = resumable
        self._seconds = seconds
        self._affinity = affinity
        self._clock = AgentClock(held)
        self._earlier = Earlier(resume_from, renderer)
        self._interruption: InterruptionError | None = None
        self._calls = 0
        self._recorder = Recorder()
        self._transcript: tuple[Message, ...] = ()
        self._finish = FinishReason.STOP
        self._stop: StopReason | None = None
        self._faults: dict[int, Exception] = {}
        self._unfit: ContextError | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The answered model calls, in the order of their answers."""
        return self._recorder.as_turns()

    @property
    def was_answered(self) -> bool:
        return len(self._recorder) > 0

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The conversation of the latest call, with its reply if there was one."""
        return self._transcript

    @property
    def fault(self) -> Exception | None:
        """What the engine raised, unless a later call was answered; or the error that no prompt ever fitted.

        The agent may have wrapped the exception in its own, or ignored it.
        """
        raised = next(iter(self._faults.values()), None)
        return raised or (None if len(self._recorder) else self._unfit)

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        seconds: float | None = None,
    ) -> Reply:
        number, self._calls = self._calls, self._calls + 1
        asked = tuple(map(_copied, transcript_of(tuple(messages), verb="asked with")))
        self._transcript = asked
        prepared = await self._prepared(asked, tools)
        budget = 0 if prepared is None else self._budget(len(prepared.prompt), max_new_tokens)
        if prepared is None or budget <= 0:
            self._finish = FinishReason.LENGTH
            return Reply("", FinishReason.LENGTH)
        seed = derive_seed(self._sampling.seed, number)
        sampling = answer_sampling(self._sampling, self._renderer.stop_token_ids, budget, seed)
        request = GenerateRequest(
            f"{self._prefix}/{number}", prepared.prompt, sampling, self._resumable, affinity=self._affinity
        )
        reply = await self._sample(number, request, prepared, math.inf if seconds is None else seconds)
        self._transcript = (*asked, reply.message)
        return reply

    def own_seconds(self) -> float:
        return self._clock.seconds()

    def watch_time(self, look: Callable[[], None] | None) -> None:
        self._clock.on_jump = look

    def out_of_budget(self) -> None:
        self._stop = StopReason.BUDGET

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode:
        """The recorded tokens with the agent's transcript. Without `stop`, a last reply that was cut by length counts
        as BUDGET."""
        cut = StopReason.BUDGET if self._finish is FinishReason.LENGTH else StopReason.DONE
        transcript = transcript_of(messages, verb="returned")
        return Episode(transcript, self._recorder.chains(), stop or self._stop or cut, self._recorder.tools)

    @property
    def recorded(self) -> tuple[RecordedChain, ...]:
        return describe_chains(self._recorder)

    async def drift(self) -> None:
        """Not measured here: `loopwright drift` computes it from what is stored."""

    async def keep(self, rollout: Rollout) -> None:
        """The record ends with this process."""

    async def _prepared(self, asked: tuple[Message, ...], tools: Sequence[Tool]) -> Prepared | None:
        """The prepared call. None if the prompt is too long to be encoded at all."""
        offered = canonical_tools(tools)
        history = self._recorder.history(canonical_messages(asked), offered)
        try:
            return await prepared_call(self._recorder, history, offered, self._renderer, self._max_context)
        except ContextError as error:
            self._unfit = self._unfit or error
            return None

    def _budget(self, prompt: int, wish: int | None) -> int:
        """How many tokens may be sampled after a prompt of `prompt` tokens (S5)."""
        room = self._max_context - prompt
        if room <= 0:
            self._unfit = self._unfit or _does_not_fit(prompt, self._max_context)
        return answer_budget(room, self._sampling.max_new_tokens, wish)

    def _read(self, sampled: Generation, prepared: Prepared, number: int) -> Reply:
        """The reply as the agent sees it. An agent that offers no tools gets the text unchanged."""
        ids, tools = sampled.ids, prepared.tools
        if not tools:
            return Reply(self._renderer.text(ids), sampled.finish, tokens=len(ids))
        parsed = self._renderer.parse(ids, tools, prepared.prompt)
        parsed = with_call_ids(parsed, lambda place: f"call_{number}_{place}")
        return Reply(parsed.content, sampled.finish, parsed.reasoning, parsed.tool_calls, len(ids))

    async def _sample(self, number: int, request: GenerateRequest, prepared: Prepared, seconds: float) -> Reply:
        try:
            if self._interruption is not None:
                raise self._interruption
            sampled = await self._generate(request, seconds)
            reply = self._read(sampled, prepared, number)
            if sampled.finish is not FinishReason.ABORT or request.resumable:
                self._record(prepared, sampled, reply, request.id)
            if sampled.finish is FinishReason.ABORT:
                raise self._cut_short(request, len(sampled.ids))
        except OutOfTimeError:
            raise
        except Exception as error:
            # Stored with the number of the next call: only if a call from there on is answered, the fault is cleared.
            self._faults.setdefault(self._calls, error)
            raise
        self._faults = {after: fault for after, fault in self._faults.items() if after > number}
        self._finish = sampled.finish
        return reply

    def _record(self, prepared: Prepared, sampled: Generation, reply: Reply, name: str) -> None:
        """Record what was sampled: a whole answer, or a part of it. Without a token there was no turn."""
        turns = planned_turns(self._recorder, prepared, [Said(sampled, reply.message, name)])
        record_turns(self._recorder, prepared, turns)

    async def _generate(self, request: GenerateRequest, seconds: float) -> Generation:
        """Sample what is asked for, within `seconds` and the agent's own time."""
        earlier = self._earlier.take(request)
        if earlier is not None and earlier.finish is not FinishReason.ABORT:
            return earlier
        answer = PartialAnswer(request, so_far=earlier or NOTHING_YET)
        rest = answer.rest()
        while True:
            left = self._left()
            begun, held = self._clock.call_begins(), None
            try:
                sampled = await self._engine.generate(rest.within(min(left, seconds)))
                held = sampled.held
                return answer.add(sampled)
            except LoopwrightError as error:
                held = error.facts.get("held")
                if seconds < left or not isinstance(error, OutOfTimeError):
                    raise
            finally:
                self._clock.call_ends(begun, held)
            if self._seconds - self._clock.seconds() <= NOTHING_LEFT:
                return await self._until_cancelled()
            # It was held for longer than was known here: there is time left, and the same tokens are sampled again.

    async def _until_cancelled(self) -> Generation:
        """The agent's time is up. Whoever watches its clock cancels the whole agent: it could catch an exception."""
        if self._clock.on_jump is None:
            remedy = "raise produce.agent_timeout_seconds"
            raise OutOfTimeError(f"the agent's {self._seconds:g} s are spent", remedy=remedy)
        never: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        return await never

    def _left(self) -> float:
        """The agent's seconds that are left for a call. If none are left by what is known here of other calls that are
        out, only they can tell."""
        left = self._seconds - self._clock.estimate()
        return left if left > 0 else max(0.0, self._seconds - self._clock.seconds())

    def _cut_short(self, request: GenerateRequest, tokens: int) -> EngineError:
        if not request.resumable:
            return EngineError(f"request {request.id} was aborted", remedy="nothing to do: the rollout is tried again")
        self._interruption = InterruptionError(
            f"request {request.id} was interrupted after {tokens} tokens",
            remedy="let this error out of the agent: the rollout goes on later, from these tokens",
        )
        return self._interruption


def _copied(message: Message) -> Message:
    return {name: copy.deepcopy(value) for name, value in message.items()}


def _does_not_fit(tokens: int, max_context: int) -> ContextError:
    return ContextError(
        f"a prompt of {tokens} tokens does not fit model.max_context {max_context} with room for an answer",
        remedy="shorten the prompt, leave such tasks out, or raise model.max_context if the model allows it",
        tokens=tokens,
        max_context=max_context,
    )
