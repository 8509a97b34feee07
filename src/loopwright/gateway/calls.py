"""Model calls over HTTP. They are read, answered as a whole or as events, and marked as delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from loopwright.errors import LoopwrightError
from loopwright.gateway.call import Answer, Call
from loopwright.gateway.dialects import AnthropicMessages, Dialect, Gemini, Responses
from loopwright.gateway.dialects.dialect import Recall
from loopwright.gateway.dialects.responses_compact import compaction_body, read_compaction
from loopwright.gateway.dialects.responses_items import input_items, item_page
from loopwright.gateway.events import Events
from loopwright.gateway.exchange import Exchange
from loopwright.gateway.http import EVENTS, Request
from loopwright.gateway.metrics import Metrics
from loopwright.gateway.reading import read_json
from loopwright.gateway.refusals import Code, as_refusal, invalid, refused
from loopwright.gateway.routes import OF_A_MODEL, Action, Target
from loopwright.gateway.session import Session, SessionState
from loopwright.gateway.sessions import Sessions, over
from loopwright.gateway.tries import Ask
from loopwright.types import Message

T = TypeVar("T")

LONGEST_COUNT = 9
"""The most digits of a retry count. Nobody retries that often."""


class ModelCalls:
    """The calls of agents to a session."""

    def __init__(self, sessions: Sessions, exchange: Exchange, metrics: Metrics) -> None:
        self._sessions = sessions
        self._exchange = exchange
        self.metrics = metrics

    async def answer(self, request: Request, target: Target, dialect: Dialect) -> None:
        session = self._sessions.find_open(target.session or "")
        call = dialect.read(await _body(request, target), _recall(session))
        ask = _ask(request)
        with session.tries.delivering(ask):
            if call.stream:
                await request.while_here(self._stream(request, session, call, ask, dialect))
                return
            work = self._exchange.answer(session, call, ask, None)
            answers = await request.while_here(_within(session, work))
            await request.answer(200, dialect.reply(call, answers))
            self._exchange.delivered(session, answers)

    async def _stream(self, request: Request, session: Session, call: Call, ask: Ask, dialect: Dialect) -> None:
        events = Events(dialect, call)
        work = self._exchange.answer(session, call, ask, events)
        answering = asyncio.ensure_future(_within(session, work))
        answering.add_done_callback(lambda _: events.close())
        try:
            async for chunk in events.chunks():
                await _send(request, chunk)
            await self._end_stream(request, session, events, answering)
        finally:
            answering.cancel()

    async def _end_stream(
        self, request: Request, session: Session, events: Events, answering: asyncio.Future[list[Answer]]
    ) -> None:
        try:
            answers: Sequence[Answer] = answering.result()
        except LoopwrightError as error:
            if not request.status or events.stream is None:
                raise
            await request.write(events.rest() + events.stream.failed(as_refusal(error)), more=False)
            return
        ending = events.stream.end(answers) if events.stream is not None else b""
        await _send(request, events.rest() + ending, more=False)
        self._exchange.delivered(session, answers)

    async def count_tokens(self, request: Request, target: Target) -> None:
        await request.answer(200, {"input_tokens": await self._counted(request, target, AnthropicMessages())})

    async def input_tokens(self, request: Request, target: Target) -> None:
        counted = await self._counted(request, target, Responses())
        await request.answer(200, {"object": "response.input_tokens", "input_tokens": counted})

    async def _counted(self, request: Request, target: Target, dialect: Dialect) -> int:
        session = self._sessions.find_open(target.session or "")
        call = dialect.read(read_json(await request.body()), _recall(session))
        return await self._exchange.count_tokens(session, call)

    async def count_content(self, request: Request, target: Target) -> None:
        session = self._sessions.find_open(target.session or "")
        body = await _body(request, target)
        asked = body.get("generateContentRequest") or body
        if not isinstance(asked, dict):
            raise invalid("generateContentRequest", "expected an object", remedy="send what you would generate from")
        call = Gemini().read(asked)
        await request.answer(200, {"totalTokens": await self._exchange.count_tokens(session, call)})

    async def compact(self, request: Request, target: Target) -> None:
        """Have the model summarise a conversation, and give back what stands for it from now on."""
        session = self._sessions.find_open(target.session or "")
        call = read_compaction(read_json(await request.body()), _recall(session))
        ask = _ask(request)
        with session.tries.delivering(ask):
            (answer,) = await request.while_here(_within(session, self._exchange.answer(session, call, ask, None)))
            conversation = session.recorder.conversation_after(answer.id)
            if conversation is None:
                raise refused(
                    Code.CONTEXT,
                    "no token is left for a summary",
                    remedy="compact the conversation sooner",
                    param="input",
                )
            # The last two are the request for a summary, and the summary.
            await request.answer(200, compaction_body(answer, conversation[:-2]))
            self._exchange.delivered(session, [answer])

    async def response(self, request: Request, target: Target) -> None:
        """An earlier response, without the settings of its request, which are not stored."""
        session, answer = self._given(target)
        if request.method == "DELETE":
            self._exchange.forget(session, answer.id)
            await request.answer(200, {"id": f"resp_{answer.id}", "object": "response", "deleted": True})
            return
        await request.answer(200, Responses().reply(Call((), tools=session.recorder.tools_of(answer.id)), [answer]))

    async def input_items(self, request: Request, target: Target) -> None:
        """What an earlier response answered."""
        session, answer = self._given(target)
        tools, conversation = session.recorder.tools_of(answer.id), session.recorder.conversation_after(answer.id)
        messages = (conversation or ())[:-1]
        asked = (request.parameter(name) for name in ("limit", "order", "after"))
        await request.answer(200, item_page(input_items(answer.id, messages, tools), *asked))

    def _given(self, target: Target) -> tuple[Session, Answer]:
        """The session, and the answer that the path names."""
        session, id = self._sessions.find_open(target.session or ""), target.name or ""
        answer = self._exchange.given(session, id.removeprefix("resp_"))
        if answer is None:
            raise refused(
                Code.UNKNOWN, f"this session has given no response {id:.80}", remedy="ask for one that it gave"
            )
        return session, answer

    async def models(self, request: Request, target: Target) -> None:
        """List the models. There is one, and it accepts every name."""
        self._sessions.find(target.session or "")
        if target.name is not None:
            await request.answer(200, _model(target.name))
            return
        one = _model(self._exchange.offer.name or "model")
        await request.answer(
            200, {"object": "list", "data": [one], "has_more": False, "first_id": one["id"], "last_id": one["id"]}
        )


async def _body(request: Request, target: Target) -> Mapping[str, Any]:
    """The body. Gemini's clients say in the path which model they mean, and whether to stream."""
    body = read_json(await request.body())
    if target.action not in OF_A_MODEL.values():
        return body
    is_streamed = target.action is Action.GENERATE_STREAM
    if is_streamed and request.parameter("alt") != "sse":
        raise invalid("alt", "answers are streamed as server-sent events only", remedy="send `?alt=sse`")
    return {**body, "model": target.name, "stream": is_streamed}


async def _within(session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Run the work while the session is open. Ending the session cancels it."""
    with session.use() as task:
        try:
            return await work
        except asyncio.CancelledError:
            if session.state is SessionState.OPEN:
                raise
            task.uncancel()
            raise over(session) from None


async def _send(request: Request, chunk: bytes, *, more: bool = True) -> None:
    if not request.status:
        await request.begin(200, EVENTS)
    await request.write(chunk, more=more)


def _recall(session: Session) -> Recall:
    def said(answer: str) -> Message | None:
        conversation = None if answer in session.deleted else session.recorder.conversation_after(answer)
        return conversation[-1] if conversation else None

    return said


def _ask(request: Request) -> Ask:
    tries = request.header("x-stainless-retry-count") or ""
    counted = int(tries) if tries.isdecimal() and len(tries) < LONGEST_COUNT else 0
    return Ask(request.id, counted, request.header("idempotency-key"))


def _model(name: str) -> dict[str, Any]:
    """A model in the form of both APIs."""
    now = int(time.time())
    return {
        "id": name,
        "object": "model",
        "created": now,
        "owned_by": "loopwright",
        "type": "model",
        "display_name": name,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
    }
