"""The vLLM adapter where a server is late, half-way or another one than before. Real servers are in tests/vllm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from controller_pool import FILE, PROMPT, ask
from counting import Nursery

from loopwright.engines.attached import BEATS_PER_LEASE
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.caller import COMMAND_SECONDS, EngineCaller
from loopwright.engines.http.connection import Connections, LostError, Patience
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm import engine as vllm
from loopwright.engines.vllm.engine import VllmEngine
from loopwright.engines.worker import Worker
from loopwright.errors import ConstraintError, EngineError, EngineLostError, UnanswerableError, WeightsError
from loopwright.ports import Exchanges
from loopwright.serve.lease import LeaseHolder
from loopwright.types import NOTHING_YET, Constraint, Generation, GrammarKind, PauseMode

pytestmark = pytest.mark.usefixtures("quick_restarts")

LABELS = VersionLabels("run", 3)


class Server:
    """What the adapter asks, in place of its `EngineCaller`. The token at position p is p."""

    url = "http://vllm"
    patience = Patience(60.0)
    little_patience = Patience(10.0)

    def __init__(self) -> None:
        self.label = "default"
        self.workers: list[dict[str, Any]] = [{"status": "loaded"}]
        self.fails: dict[str, Exception] = {}
        self.paths: list[str] = []
        self.patiences: list[Patience] = []
        self.bodies: list[Any] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self._goes_on = asyncio.Event()
        self._goes_on.set()

        self.given = asyncio.Event()
        self._most: int | None = None
        self.refuses: Exception | None = None

    def gives(self, tokens: int | None) -> None:
        """Give only so many tokens of each answer, and wait then."""
        self._most = tokens

    def holds(self) -> None:
        """Answer nothing from now on, as if it were paused."""
        self._goes_on.clear()

    async def text(self, method: str, path: str, body: Any, patience: Patience) -> bytes:
        self.paths.append(path)
        self.patiences.append(patience)
        if path in self.fails:
            raise self.fails[path]
        if path.startswith("/pause"):
            self._goes_on.clear()
        elif path == "/resume":
            self._goes_on.set()
        elif path == "/update_weight_version":
            self.label = body["new_version"]
        return b""

    async def command(self, method: str, path: str, body: Any = None) -> Any:
        return await self.asked(method, path, body, Patience(COMMAND_SECONDS))

    async def asked(self, method: str, path: str, body: Any, patience: Patience) -> Any:
        self.patiences.append(patience)
        assert json.loads(body["args"][0])
        await self.answers.wait()
        return {"results": self.workers}

    @asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[tuple[bool, Any]]]:
        self.bodies.append(body)
        yield self._events(len(body["token_ids"]), body["sampling_params"]["max_tokens"])

    async def _events(self, start: int, count: int) -> AsyncIterator[tuple[bool, Any]]:
        await self._goes_on.wait()
        if self.refuses is not None:
            raise self.refuses
        for place in range(count):
            if place == self._most:
                self.given.set()
                await asyncio.Event().wait()
            choice: dict[str, Any] = {"token_ids": [start + place], "logprobs": {"content": [{"logprob": -0.5}]}}
            if place == count - 1:
                spans = [{"start": 0, "end": count, "version": self.label}]
                choice |= {"finish_reason": "length", "weight_versions": spans}
            yield True, {"choices": [choice]}


def engine_of(server: Server) -> VllmEngine:
    engine = VllmEngine(Connections("http://127.0.0.1:9", None), LABELS)
    engine._caller = server  # type: ignore[assignment]
    return engine


@asynccontextmanager
async def controlled(*launches: Any, **options: Any) -> AsyncIterator[RolloutController]:
    async with asyncio.timeout(20), RolloutController.open(launches, **options) as controller:
        yield controller


def attached(server: Server) -> Any:
    """As `attached_engine` does: the server outlives the adapter, and is resumed when the adapter is left."""

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        engine = engine_of(server)
        try:
            yield Worker(engine, asyncio.Event().wait)  # type: ignore[arg-type]
        finally:
            await engine.resume()

    return launch


async def test_a_call_that_a_pause_holds_is_asked_again_if_its_engine_fails_its_proof() -> None:
    """Leaving an attached server resumes it. What it was held back from must not be sampled with unproven weights."""
    proofs, server = list[int](), Server()

    async def prove(name: str, engine: Any, version: int) -> None:
        # Leaving the server and attaching to it again takes a few turns of the loop.
        for _ in range(20):
            await asyncio.sleep(0)
        proofs.append(len(server.bodies))
        if len(proofs) == 1:
            raise EngineLostError("it computes something else", remedy="none")

    async with controlled(attached(server), prove=prove) as controller:
        call = asyncio.create_task(controller.generate(ask(tokens=8)))
        while not controller._calls or next(iter(controller._calls)).asking is None:
            await asyncio.sleep(0)
        await controller.pause(PauseMode.ABORT)
        await controller.load(1, FILE)
        await controller.resume()
        async with asyncio.timeout(5):
            answer = await call
    assert proofs == [0, 0], "nothing was sampled before the second proof"
    assert len(server.bodies) == 1
    assert set(answer.versions) == {1}


async def test_a_call_that_a_pause_holds_does_not_wait_for_an_engine_that_is_gone() -> None:
    servers = [Server(), Server()]
    launched = iter(servers)

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        yield Worker(engine_of(next(launched)), asyncio.Event().wait)  # type: ignore[arg-type]

    async with controlled(launch) as controller:
        call = asyncio.create_task(controller.generate(ask(tokens=8)))
        while not controller._calls or next(iter(controller._calls)).asking is None:
            await asyncio.sleep(0)
        await controller.pause(PauseMode.ABORT)
        servers[0].workers = [{"status": "lost", "why": "out of memory"}]
        await controller.load(1, FILE)
        await controller.resume()
        async with asyncio.timeout(5):
            assert set((await call).versions) == {1}


async def test_a_server_of_which_only_a_part_has_the_new_weights_is_lost() -> None:
    server = Server()
    server.workers = [{"status": "refused", "why": "no memory"}, {"status": "loaded"}]
    with pytest.raises(EngineLostError, match="no memory"):
        await engine_of(server).load(1, FILE)


async def test_a_server_that_has_new_weights_under_the_old_name_is_lost() -> None:
    server = Server()
    server.fails["/update_weight_version"] = EngineError("status 500", remedy="none")
    with pytest.raises(EngineLostError, match="version 1"):
        await engine_of(server).load(1, FILE)


async def test_a_server_that_refuses_an_update_serves_on() -> None:
    server = Server()
    engine = engine_of(server)
    await engine.load(1, FILE)
    server.workers = [{"status": "refused", "why": "too small"}]
    with pytest.raises(WeightsError, match="too small"):
        await engine.load(2, FILE)
    async with asyncio.timeout(5):
        assert set((await engine.generate(ask())).versions) == {1}


async def test_the_same_version_loaded_again_has_another_salt() -> None:
    """The server may have cached keys under the first load that was not right."""
    server = Server()
    for _ in range(2):
        engine = engine_of(server)
        for _ in range(2):
            await engine.load(1, FILE)
            await engine.generate(ask())
    assert len({body["cache_salt"] for body in server.bodies}) == 4
    assert all(LABELS.of(1) in body["cache_salt"] for body in server.bodies)


async def test_tokens_of_a_server_that_was_started_again_are_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its label comes with the end of the answer, when all but the last token have been streamed."""
    server, other = Server(), Nursery()
    async with controlled(attached(server), other.launch, max_restarts=0) as controller:
        await controller.load(1, FILE)
        server.label = "default"
        monkeypatch.setattr(controller._router, "choose", lambda request, running, failed: running[0])
        with pytest.raises(EngineError, match="default"):
            await controller.generate(ask())
        assert len(controller._pool.running) == 1, "its weights are not ours"


async def test_a_call_that_a_pause_holds_back_can_be_aborted() -> None:
    server = Server()
    engine = engine_of(server)
    await engine.pause(PauseMode.ABORT)
    calls = [asyncio.create_task(engine.generate(ask(f"a/{number}"))) for number in range(2)]
    await asyncio.sleep(0)
    await engine.abort("a/0")
    async with asyncio.timeout(5):
        assert await calls[0] == NOTHING_YET
    assert not calls[1].done()
    await engine.resume()
    async with asyncio.timeout(5):
        assert (await calls[1]).ids
    assert len(server.bodies) == 1


async def test_a_call_that_is_cancelled_while_it_is_cut_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise whoever cancelled it waits for it, and it goes on."""
    monkeypatch.setattr(vllm, "CUT_SECONDS", 0.01)
    server = Server()
    engine = engine_of(server)
    server.holds()
    call = asyncio.create_task(engine.generate(ask()))
    while not server.bodies:
        await asyncio.sleep(0)
    [asking] = [task for task in asyncio.all_tasks() if task not in (call, asyncio.current_task())]
    asking.add_done_callback(lambda _: call.cancel())
    async with asyncio.timeout(5):
        await engine.pause(PauseMode.ABORT)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_server_that_does_not_answer_a_beat_of_the_lease_is_lost_before_the_lease_ends() -> None:
    """Unless its workers load weights: they answer when they are done."""
    server = Server()
    server.workers = [{"status": "held"}]
    engine = engine_of(server)
    await engine.lease(LeaseHolder("run", 3), 60.0)
    [patience] = server.patiences
    assert patience.seconds + 60.0 / BEATS_PER_LEASE < 60.0
    with pytest.raises(LostError):
        await patience.after()
    server.workers = [{"status": "loaded"}]
    server.answers.clear()
    loading = asyncio.create_task(engine.load(1, FILE))
    while len(server.patiences) < 3:
        await asyncio.sleep(0)
    await patience.after()
    server.answers.set()
    await loading
    with pytest.raises(LostError):
        await patience.after()


async def test_every_command_has_a_deadline() -> None:
    """A server whose engine hangs still answers /health."""
    server = Server()
    engine = engine_of(server)
    await engine.pause(PauseMode.ABORT)
    await engine.resume()
    assert all(patience is not server.patience for patience in server.patiences)


BOUND = Constraint(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


async def test_a_constrained_answer_is_told_as_a_whole_and_none_of_it_trains() -> None:
    """vLLM's logprobs of it are those of what its mask left (T8)."""
    engine, parts = engine_of(Server()), list[Generation]()
    said = await engine.generate(replace(ask(tokens=8), constraint=BOUND), parts.append)
    assert (len(said.ids), said.constrained, parts) == (8, ((0, 8),), [])


async def test_a_constrained_answer_that_is_cut_begins_again() -> None:
    """vLLM would begin the grammar in the middle of the answer."""
    server = Server()
    async with controlled(attached(server)) as controller:
        server.gives(3)
        call = asyncio.create_task(controller.generate(replace(ask(tokens=8), constraint=BOUND)))
        await server.given.wait()
        await controller.pause(PauseMode.ABORT)
        server.gives(None)
        await controller.load(1, FILE)
        await controller.resume()
        async with asyncio.timeout(5):
            said = await call
    assert [len(body["token_ids"]) for body in server.bodies] == [len(PROMPT)] * 2
    assert (len(said.ids), set(said.versions), said.constrained) == (8, {1}, ((0, 8),))


async def test_no_constrained_answer_goes_on_from_its_middle() -> None:
    with pytest.raises(ConstraintError, match="within its grammar"):
        await engine_of(Server()).generate(replace(ask(), constraint=BOUND, sampled_before=2))


class Answering:
    """A connection whose stream says this."""

    url = "http://127.0.0.1:9"

    def __init__(self, *events: Any) -> None:
        self._said = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        self.status = 200

    @asynccontextmanager
    async def ask(self, *_: Any) -> AsyncIterator[Answering]:
        yield self

    async def more(self) -> bytes:
        said, self._said = self._said, b""
        return said


@pytest.mark.parametrize(
    ("code", "error"), [(400, UnanswerableError), (500, EngineError), ("400", EngineError), (None, EngineError)]
)
async def test_an_error_in_a_stream_says_whose_fault_it_is(code: Any, error: type[EngineError]) -> None:
    """vLLM checks a request after it has begun its answer with 200. An engine that is asked for what it cannot do
    would count as sick."""
    said = {"error": {"message": "Grammar error: uniqueItems", "type": "BadRequestError", "code": code}}
    caller = EngineCaller(cast(Exchanges, Answering(said)))
    async with caller.stream("/inference/v1/generate", {}) as events:
        with pytest.raises(EngineError, match="uniqueItems") as raised:
            await anext(events)
    assert type(raised.value) is error


async def test_what_the_server_refuses_of_a_constraint_is_the_constraints_fault() -> None:
    server = Server()
    server.refuses = UnanswerableError("uniqueItems is not supported", remedy="none")
    with pytest.raises(ConstraintError, match="uniqueItems"):
        await engine_of(server).generate(replace(ask(), constraint=BOUND))
