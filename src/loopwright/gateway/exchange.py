"""One model call from its canonical form to its answer: prepare, log, sample, commit (S2).

A turn is committed and stored as a whole before its end is reported. Nothing is awaited between planning a turn and
adding it to memory, so turns need no lock. A call that fails, is cancelled or loses its client before that leaves no
trace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import repeat
from operator import attrgetter

import orjson

from loopwright.core.together import together
from loopwright.errors import AlternativesError, ConstraintError, ContextError, EngineError, LoopwrightError
from loopwright.gateway.call import Answer, Call, TokenLogprob, Wishes, sample_id, tool_call_id, whole_answer
from loopwright.gateway.dialects.dialect import Head
from loopwright.gateway.dialects.responses_compact import is_summary
from loopwright.gateway.freeform import freeform_names, with_inputs
from loopwright.gateway.hearing import Listener, SampleReader, tell_whole
from loopwright.gateway.metrics import Metrics
from loopwright.gateway.offer import Offer, Served
from loopwright.gateway.reading import check_recordable
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.gateway.session import Session, SessionState
from loopwright.gateway.sessions import over
from loopwright.gateway.store import SessionStore
from loopwright.gateway.tries import Ask
from loopwright.gateway.upstream import sample_answer
from loopwright.render.recording.fingerprint import TEXT
from loopwright.render.recording.likeliest import likeliest_of
from loopwright.render.recording.matching import History
from loopwright.render.recording.model_call import planned_turns, prepared_call, record_turns, with_call_ids
from loopwright.render.recording.prepared import Prepared
from loopwright.render.recording.recorder import Said
from loopwright.render.text_conversation import text_history, writer_of
from loopwright.types import Constraint, FinishReason, GenerateRequest, Generation, Message, Parsed, Sampling
from loopwright.types.sampling import Likeliest

log = logging.getLogger("loopwright")

NOTHING = Generation((), (), (), FinishReason.LENGTH)
"""The generation if no room is left."""
WISHES = tuple(wish.name for wish in fields(Wishes))
wishes_of = attrgetter(*WISHES)


class Exchange:
    """Answers calls with the model that is offered."""

    def __init__(self, offer: Offer, store: SessionStore, metrics: Metrics) -> None:
        self.offer = offer
        self._store = store
        self._metrics = metrics
        self._is_closing = False

    async def answer(self, session: Session, call: Call, ask: Ask, listener: Listener | None) -> list[Answer]:
        """The answers to the call, one for each requested sample. All of them are committed."""
        if session.call_arrives():
            self._store.note(session)
        if call.messages and call.messages[0]["role"] == TEXT:
            served = await self._model(session)
            _check_length(served, session, call.messages[0])
            call = replace(call, messages=text_history(session.recorder, call.messages[0], served.renderer))
        history = _history(session, call)
        repeats = session.tries.begin(history, ask)
        # Most questions are new, and need nothing more here.
        if repeats or session.recorder.asked(history):
            earlier = await self._earlier(session, history, call, ask, repeats=repeats)
            if earlier:
                tell_whole(earlier, listener)
                return earlier
        # A call that is being encoded or waits for tokens is already running: a retry of it must not become another
        # sample.
        with session.tries.flight(history, ask):
            served = self.offer.now or await self._model(session)
            prepared = await self._prepared(served, session, history, call)
            prompt_ids = prepared.prompt if call.token_ids else ()
            head = Head(ask.id, int(time.time()), len(prepared.prompt), prepared.shared_tokens, prompt_ids)
            if listener is not None:
                listener.head(head)
            await session.has_tokens()
            _check_open(session)
            room = served.max_context - len(prepared.prompt)
            samplings = session.samplings(call.wishes, room, served.renderer.stop_token_ids, call.samples)
            # Hold the tokens until they are committed, so that sampled tokens always count as held or as recorded.
            with session.holding(sum(sampling.max_new_tokens for sampling in samplings)):
                self._store.ask(session.id, ask.id, len(prepared.prompt), len(samplings), session.calls)
                try:
                    answers = await self._sampled(served, session, call, prepared, samplings, head, listener)
                    self._commit(session, ask.id, prepared, call, answers)
                except BaseException:
                    if not self._is_closing:
                        self._store.withdraw(session, ask.id)
                    raise
        return [answer for answer, _ in answers]

    def close(self) -> None:
        """The gateway is about to end: a call that does not end in time counts as cut off."""
        self._is_closing = True

    async def count_tokens(self, session: Session, call: Call) -> int:
        """The number of tokens that the prompt would have."""
        served = await self._model(session)
        prepared = await self._prepared(served, session, _history(session, call), call, fitting=False)
        return len(prepared.prompt)

    def given(self, session: Session, answer: str) -> Answer | None:
        """An answer that the session has recorded."""
        number = session.recorder.number_of(answer)
        if number is None or not _is_response(session, answer):
            return None
        return self._recorded_answer(session, number, Call(()))

    def forget(self, session: Session, answer: str) -> None:
        """No request can name the answer any more. It stays recorded."""
        session.deleted.add(answer)
        self._store.note(session)

    def delivered(self, session: Session, answers: Sequence[Answer]) -> None:
        """Record that the client has its answers. The same question is a new one from now on."""
        session.quiet_since_restart = False
        numbers = session.recorder.mark_delivered([answer.id for answer in answers])
        self._store.delivered(session.id, numbers)

    async def _model(self, session: Session) -> Served:
        try:
            return await self.offer.ready()
        except EngineError as error:
            raise self._unanswered(session, error) from error

    def _unanswered(self, session: Session, error: EngineError) -> LoopwrightError:
        session.note_fault(error)
        # Agents must not learn where the engine is or what its problem is; the log says it.
        log.warning("session %s: the engine gave no answer: %s", session.id, error.message)
        return refused(Code.ENGINE, "the engine gave no answer", remedy="try again")

    async def _earlier(
        self, session: Session, history: History, call: Call, ask: Ask, *, repeats: bool
    ) -> list[Answer]:
        """The earlier answers, if the client asks for them again. `repeats`: the request may be a retry."""
        recorder, tries = session.recorder, session.tries
        if repeats and not await tries.settled(history, ask):
            return []
        if not (equal := recorder.asked(history)):
            return []
        wishes = orjson.dumps(_wishes(call))
        asked = [number for number in equal if orjson.dumps(recorder.turns[number].wishes) == wishes]
        if not asked:
            return []
        first = tries.first(ask)
        call_of = {number: whole_answer(recorder.turns[number].answer) for number in asked}
        if first is not None:
            candidates = [number for number in asked if call_of[number] == first]
        else:
            candidates = [n for n in asked if n in recorder.undelivered and tries.is_lost(call_of[n])]
            candidates = candidates or (asked if tries.is_only(history, ask) else [])
        # Take the requested number of samples from the latest such call.
        samples = [number for number in candidates if call_of[number] == call_of[candidates[-1]]][-call.samples :]
        if len(samples) < call.samples:
            return []
        tries.claim(call_of[samples[0]], ask)
        self._metrics.replayed()
        return [self._recorded_answer(session, number, call) for number in samples]

    def _recorded_answer(self, session: Session, number: int, call: Call) -> Answer:
        turn = session.recorder.turns[number]
        prompt, cached = session.recorder.prompt_tokens(number)
        streams = tuple(turn.ids.tolist()), tuple(turn.logprobs.tolist()), tuple(turn.versions.tolist())
        generation = Generation(*streams, turn.finish, alternatives=likeliest_of(turn.alternatives))
        return Answer(
            turn.answer,
            turn.created,
            turn.parsed,
            turn.finish,
            turn.stop,
            prompt,
            cached,
            len(turn.ids),
            _logprobs(generation, self.offer.current()) if call.logprobs else (),
            session.recorder.prompt(number) if call.token_ids else (),
            generation.ids if call.token_ids else (),
        )

    async def _prepared(
        self, served: Served, session: Session, history: History, call: Call, *, fitting: bool = True
    ) -> Prepared:
        most, writer = served.max_context if fitting else None, writer_of(history.messages, served.renderer)
        try:
            prepared = await prepared_call(
                session.recorder, history, call.tools, writer, most, preamble=call.instructions
            )
        except ContextError as error:
            unfit = _unfit(served, f"at least {error.facts['tokens']}", error.facts["tokens"])
            session.note_unfit(unfit)
            raise _too_long(unfit) from error
        except LoopwrightError as error:
            message = f"the conversation cannot be written for this model: {error.message}"
            param = "prompt" if history.messages[0]["role"] == TEXT else "messages"
            raise refused(Code.INVALID, message, remedy=error.remedy, param=param) from error
        tokens = len(prepared.prompt)
        if fitting and tokens >= served.max_context:
            unfit = _unfit(served, str(tokens), tokens)
            session.note_unfit(unfit)
            if tokens > served.max_context:
                raise _too_long(unfit)
        return prepared

    async def _sampled(
        self,
        served: Served,
        session: Session,
        call: Call,
        prepared: Prepared,
        samplings: Sequence[Sampling],
        head: Head,
        listener: Listener | None,
    ) -> list[tuple[Answer, Generation]]:
        constraint = _constraint(served, call, prepared) if any(one.max_new_tokens for one in samplings) else None
        if len(samplings) == 1:
            return [await self._one(served, session, call, prepared, constraint, samplings[0], head, 0, listener)]
        return await together(
            self._one(served, session, call, prepared, constraint, sampling, head, number, listener)
            for number, sampling in enumerate(samplings)
        )

    async def _one(
        self,
        served: Served,
        session: Session,
        call: Call,
        prepared: Prepared,
        constraint: Constraint | None,
        sampling: Sampling,
        head: Head,
        number: int,
        listener: Listener | None,
    ) -> tuple[Answer, Generation]:
        """Sample number `number` of a call whose first sample has this head."""
        if number:
            head = replace(head, id=sample_id(head.id, number))
        if sampling.max_new_tokens == 0:
            return _answer(call, head, Parsed(), NOTHING), NOTHING
        name, affinity = f"{session.id}/{head.id}", session.settings.affinity
        request = GenerateRequest(
            name,
            prepared.prompt,
            sampling,
            part_tokens=1,
            affinity=affinity,
            constraint=constraint,
            alternatives=call.alternatives,
        )
        writer = writer_of(call.messages, served.renderer)
        # What the agent has begun is text: if it spells the mark of a thought, no thought is open (T9).
        parser = writer.parser(call.tools, () if call.begun else prepared.prompt)
        reader = SampleReader(parser, sampling.stop, number, listener)
        try:
            generation = await sample_answer(served.engine, request, reader.hear, early=listener is not None)
            if call.alternatives and generation.ids and not generation.alternatives:
                raise AlternativesError("this engine does not tell the likeliest tokens", remedy="ask without them")
        except ConstraintError as error:
            raise _not_constrained(call, error) from error
        except AlternativesError as error:
            raise invalid(call.alternatives_field, error.message, remedy=error.remedy) from error
        except EngineError as error:
            raise self._unanswered(session, error) from error
        session.note_fault(None)
        logprobs = _logprobs(generation, served) if call.logprobs else ()
        parsed = with_inputs(reader.finish(), freeform_names(call.tools))
        parsed = with_call_ids(parsed, partial(tool_call_id, head.id))
        return _answer(call, head, parsed, generation, reader.stop, logprobs), generation

    def _commit(
        self,
        session: Session,
        call_id: str,
        prepared: Prepared,
        call: Call,
        answers: Sequence[tuple[Answer, Generation]],
    ) -> None:
        """Commit all samples of a call or none, in the store and in memory, without an await in between. An answer
        without sampled tokens is no turn."""
        wishes = _wishes(call)
        said = [
            Said(generation, answer.parsed.message, answer.id, answer.created, answer.stop, wishes, session.calls)
            for answer, generation in answers
        ]
        # If the session was ended, its record was already returned: a turn added now would only be in the store.
        _check_open(session)
        turns = planned_turns(session.recorder, prepared, said)
        session.last_finish = answers[-1][0].finish
        self._store.add(session, call_id, turns)
        record_turns(session.recorder, prepared, turns)
        for turn in turns:
            self._metrics.recorded(turn)


def _constraint(served: Served, call: Call, prepared: Prepared) -> Constraint | None:
    if call.form is None:
        return None
    if call.begun:
        begun = ConstraintError("the agent has begun the answer", remedy="ask for a form, or begin the answer yourself")
        raise _not_constrained(call, begun)
    try:
        return writer_of(call.messages, served.renderer).constraint(call.form, prepared.prompt)
    except ConstraintError as error:
        raise _not_constrained(call, error) from error


def _not_constrained(call: Call, error: ConstraintError) -> LoopwrightError:
    field = call.form.asked_by if call.form else ""
    return invalid(field, error.message, remedy=error.remedy)


def _logprobs(generation: Generation, served: Served) -> tuple[TokenLogprob, ...]:
    pieces = served.renderer.pieces(generation.ids)
    told = generation.alternatives or repeat((), len(pieces))
    return tuple(
        TokenLogprob(piece, odds, _texts(likeliest, served))
        for piece, odds, likeliest in zip(pieces, generation.logprobs, told, strict=True)
    )


def _texts(likeliest: Likeliest, served: Served) -> tuple[tuple[str, float], ...]:
    pieces = served.renderer.pieces([token for token, _ in likeliest])
    return tuple((piece, odds) for piece, (_, odds) in zip(pieces, likeliest, strict=True))


def _unfit(served: Served, said: str, tokens: int) -> ContextError:
    return ContextError(
        f"the prompt has {said} tokens, and this model's maximum context length is {served.max_context}",
        remedy="shorten the conversation",
        tokens=tokens,
        max_context=served.max_context,
    )


def _too_long(error: ContextError) -> LoopwrightError:
    return refused(Code.CONTEXT, error.message, remedy=error.remedy, param="messages")


def _check_length(served: Served, session: Session, prompt: Message) -> None:
    """Refuse too many ids before they are compared and decoded."""
    if (tokens := len(prompt.get("ids", ()))) > served.max_context:
        unfit = _unfit(served, str(tokens), tokens)
        session.note_unfit(unfit)
        raise _too_long(unfit)


def _check_open(session: Session) -> None:
    if session.state is not SessionState.OPEN:
        raise over(session)


def _history(session: Session, call: Call) -> History:
    messages = call.messages
    if call.tools:
        check_recordable(call.tools, "tools")
    if call.previous is not None:
        before = session.recorder.conversation_after(call.previous)
        # A completion has no chat template and no tools, so no chat can continue it.
        if before is None or before[0]["role"] == TEXT or not _is_response(session, call.previous):
            raise refused(
                Code.PREVIOUS,
                f"this session has given no response resp_{call.previous}",
                remedy="send the whole conversation as `input`",
                param="previous_response_id",
            )
        preamble = messages[:1] if call.instructions else ()
        messages = (*preamble, *before, *messages[len(preamble) :])
    return session.recorder.history(messages, call.tools, call.begun)


def _is_response(session: Session, answer: str) -> bool:
    """Whether requests may name the recorded answer: it was not deleted, and is no summary of a compaction."""
    number = session.recorder.number_of(answer)
    is_known = number is not None and answer not in session.deleted
    return is_known and not is_summary(session.recorder.turns[number or 0].wishes)


def _answer(
    call: Call,
    head: Head,
    parsed: Parsed,
    generation: Generation,
    stop: str | None = None,
    logprobs: tuple[TokenLogprob, ...] = (),
) -> Answer:
    return Answer(
        head.id,
        head.created,
        parsed,
        generation.finish,
        stop,
        head.prompt_tokens,
        head.cached_tokens,
        len(generation.ids),
        logprobs,
        head.prompt_ids,
        generation.ids if call.token_ids else (),
    )


def _wishes(call: Call) -> dict[str, object]:
    """The settings that the agent asked for, without those that it did not set."""
    values = wishes_of(call.wishes)
    return {name: value for name, value in zip(WISHES, values, strict=True) if value not in (None, (), {})}
