"""The SGLang adapter on the fake of its server: exact tokens, updates that are seen to be done, and faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from plain_model import PlainModel, Sample

from loopwright.engines.controller import RolloutController
from loopwright.engines.sglang import engine as sglang
from loopwright.engines.sglang.engine import SglangEngine
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Worker
from loopwright.errors import EngineError, EngineLostError, LeaseError, ModelError, ProofError, WeightsError
from loopwright.serve.lease import LeaseHolder
from loopwright.testing.sglang_server import Options, SglangServer, serve_sglang
from loopwright.testing.weight_file import weight_file
from loopwright.types import IN_PLACE, FinishReason, GenerateRequest, Generation, PauseMode, Sampling, WeightFile
from loopwright.weights.proof import WeightProof

LABELS = VersionLabels("run", 0)
HOLDER = LeaseHolder("run", 0)
PROMPT = tuple(range(5, 45))
LONG = 900


@asynccontextmanager
async def pair(
    folder: Path, options: Options | None = None, labels: VersionLabels | None = LABELS
) -> AsyncIterator[tuple[SglangServer, SglangEngine]]:
    async with serve_sglang(folder, options) as server, SglangEngine.connect(server.url, None, labels=labels) as engine:
        yield server, engine


@pytest.fixture
async def served(tiny_llama_folder: Path) -> AsyncIterator[tuple[SglangServer, SglangEngine]]:
    async with pair(tiny_llama_folder) as made:
        yield made


@pytest.fixture
def files(plain: PlainModel, tmp_path: Path) -> list[WeightFile]:
    return [weight_file(weights, tmp_path / f"{i}.safetensors") for i, weights in enumerate(plain.versions)]


def ask(tokens: int = 8, id: str = "r", prompt: Sequence[int] = PROMPT, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(id, tuple(prompt), Sampling(max_new_tokens=tokens, **sampling), part_tokens=4)


def check(plain: PlainModel, request: GenerateRequest, answer: Generation) -> None:
    """Every logprob is that of the token's version."""
    sample = Sample(request, answer.ids, answer.logprobs, answer.versions)
    temperature = request.sampling.temperature or 1.0
    for version in set(answer.versions):
        rows = (plain.logits(version, [sample.stream])[0] / temperature).log_softmax(-1)
        for place, (token, logprob) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
            if answer.versions[place] == version:
                assert abs(float(rows[len(request.prompt_ids) + place - 1, token]) - logprob) < 1e-4


async def running(server: SglangServer, *asked: Any) -> list[asyncio.Task[Generation]]:
    tasks = [asyncio.ensure_future(one) for one in asked]
    async with asyncio.timeout(20):
        while len(server.scheduler.running) < len(tasks):
            await asyncio.sleep(0.001)
    return tasks


class PlainLearner:
    """What the proof asks of a learner, by the plain model."""

    def __init__(self, plain: PlainModel, version: int) -> None:
        self._plain, self._version = plain, version

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        rows = (self._plain.logits(self._version, [ids])[0] / temperature).log_softmax(-1)
        return tuple(float(rows[i, token]) for i, token in enumerate(ids[1:]))


async def prove(plain: PlainModel, engine: SglangEngine, version: int, temperature: float = 0.7) -> None:
    learner: Any = PlainLearner(plain, version)
    proof = WeightProof(learner, plain.model.config.vocab_size, temperature=temperature)
    async with proof.of(version):
        await proof("0", engine, version)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_k": 3}])
async def test_tokens_and_logprobs_are_exact_and_parts_come_once(
    tiny_llama_folder: Path, plain: PlainModel, incremental: bool, sampling: dict[str, Any]
) -> None:
    async with pair(tiny_llama_folder, Options(incremental_streaming_output=incremental)) as (_, engine):
        parts: list[Generation] = []
        request = ask(11, **sampling)
        answer = await engine.generate(request, parts.append)
    assert (len(answer.ids), answer.finish, set(answer.versions)) == (11, FinishReason.LENGTH, {0})
    check(plain, request, answer)
    told = [token for part in parts for token in part.ids]
    assert tuple(told) == answer.ids[: len(told)]
    assert len(told) >= 9


async def test_an_end_token_that_was_not_asked_for_ends_nothing(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel
) -> None:
    server, engine = served
    free = await engine.generate(ask(30, temperature=0.0))
    eos, mine = free.ids[4], free.ids[20]
    assert mine not in free.ids[:20]
    server.scheduler._eos.add(eos)
    request = ask(30, temperature=0.0, stop_token_ids=(mine,))
    answer = await engine.generate(request)
    assert (answer.ids, answer.finish) == (free.ids[:21], FinishReason.STOP)
    check(plain, request, answer)
    assert (await engine.generate(ask(5, temperature=0.0, stop_token_ids=(mine,)))).finish is FinishReason.LENGTH


async def test_an_update_cuts_answers_which_go_on_exactly(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel, files: list[WeightFile]
) -> None:
    server, engine = served
    request = ask(LONG)
    [task] = await running(server, engine.generate(request))
    await engine.pause(PauseMode.ABORT)
    before = await task
    assert before.finish is FinishReason.ABORT
    check(plain, request, before)
    for version in (1, 2):
        await engine.load(version, files[version])
        await prove(plain, engine, version)
        await engine.resume()
        rest = ask(6, prompt=(*PROMPT, *before.ids))
        answer = await engine.generate(rest)
        assert set(answer.versions) == {version} == {engine.version}
        check(plain, rest, answer)
        await engine.pause(PauseMode.ABORT)
    assert not list(Path(files[0].path).parent.glob(".*"))


async def test_keys_of_the_version_before_are_not_read_even_if_the_flush_did_nothing(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel, files: list[WeightFile]
) -> None:
    """The prompt is longer than two cache blocks of every server, and was cached under the version before (W1)."""
    server, engine = served
    server.faults.keep_cache = True
    await engine.load(1, files[1])
    await engine.generate(ask())
    await engine.load(2, files[2])
    answer = await engine.generate(ask())
    assert set(answer.versions) == {2}
    check(plain, ask(), answer)


async def test_the_resumed_run_has_another_version_1(
    tiny_llama_folder: Path, plain: PlainModel, files: list[WeightFile]
) -> None:
    async with pair(tiny_llama_folder) as (server, engine):
        server.faults.keep_cache = True
        await engine.load(1, files[1])
        await engine.generate(ask())
        async with SglangEngine.connect(server.url, None, labels=VersionLabels("run", 1)) as resumed:
            await resumed.load(1, files[2])
            answer = await resumed.generate(ask())
            check(plain, ask(), Generation(answer.ids, answer.logprobs, (2,) * 8, answer.finish))
            with pytest.raises(EngineError, match="says that its weights are 'run:1:1'"):
                await engine.generate(ask())


@pytest.mark.parametrize("fault", ["ignore_updates", "half_updates"])
async def test_an_update_that_was_not_done_is_caught_by_the_proof(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel, files: list[WeightFile], fault: str
) -> None:
    server, engine = served
    setattr(server.faults, fault, True)
    await engine.pause(PauseMode.ABORT)
    await engine.load(1, files[1])
    with pytest.raises(ProofError, match="does not serve the weights of version 1"):
        await prove(plain, engine, 1)


@pytest.mark.parametrize("fault", ["refuse_updates", "refuse_flush", "keep_label", "die_in_update"])
async def test_a_server_that_fails_in_an_update_is_lost(
    served: tuple[SglangServer, SglangEngine], files: list[WeightFile], fault: str
) -> None:
    server, engine = served
    setattr(server.faults, fault, True)
    with pytest.raises(EngineLostError):
        await engine.load(1, files[1])
    assert engine.version == 0


async def test_weights_that_are_gone_or_damaged_change_nothing(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel, files: list[WeightFile]
) -> None:
    _, engine = served
    file = Path(files[1].path)
    await asyncio.to_thread(file.write_bytes, b"x")
    with pytest.raises(WeightsError, match="nothing was changed"):
        await engine.load(1, files[1])
    await asyncio.to_thread(file.unlink)
    with pytest.raises(WeightsError, match="nothing was changed"):
        await engine.load(1, files[1])
    with pytest.raises(EngineError, match="as a file"):
        await engine.load(1, IN_PLACE)
    async with asyncio.timeout(20):
        check(plain, ask(), await engine.generate(ask()))


async def test_a_server_that_does_not_say_what_it_has_after_an_update_is_lost(
    served: tuple[SglangServer, SglangEngine], files: list[WeightFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are new. An error that is taken for a refusal would let it serve them under the old version."""
    _, engine = served

    async def unreadable(patience: Any) -> str:
        raise EngineError("the answer is no JSON", remedy="none")

    monkeypatch.setattr(engine, "_label", unreadable)
    with pytest.raises(EngineLostError, match="version 1"):
        await engine.load(1, files[1])


async def test_each_load_of_a_version_has_keys_of_its_own(
    served: tuple[SglangServer, SglangEngine], files: list[WeightFile]
) -> None:
    _, engine = served
    keys = set()
    for _ in range(2):
        await engine.load(1, files[1])
        keys.add(engine._extra_key)
    assert len(keys) == 2


@pytest.mark.parametrize("fault", [-1, 1])
async def test_logprobs_of_another_length_are_an_error(served: tuple[SglangServer, SglangEngine], fault: int) -> None:
    server, engine = served
    server.faults.wrong_logprobs = fault
    with pytest.raises(EngineError, match="output_token_logprobs"):
        await engine.generate(ask())


async def test_another_label_is_an_error(served: tuple[SglangServer, SglangEngine], files: list[WeightFile]) -> None:
    server, engine = served
    await engine.load(1, files[1])
    server.faults.wrong_label = "run:0:2"
    with pytest.raises(EngineError, match="'run:0:2', and the request was for 'run:0:1'"):
        await engine.generate(ask())


async def test_keep_is_refused_with_the_reason(served: tuple[SglangServer, SglangEngine]) -> None:
    with pytest.raises(EngineError, match="cannot keep requests across an update"):
        await served[1].pause(PauseMode.KEEP)
    assert len((await served[1].generate(ask())).ids) == 8


async def test_a_cancelled_call_is_aborted_on_the_server(served: tuple[SglangServer, SglangEngine]) -> None:
    server, engine = served
    [task] = await running(server, engine.generate(ask(LONG)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.scheduler.running
    assert server.scheduler.sampled < LONG


async def test_a_request_that_comes_after_a_pause_is_not_sampled_when_the_server_goes_on(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server parks it, and no abort reaches it there."""
    server, engine = served
    arrive, stream = asyncio.Event(), engine._caller.stream

    @asynccontextmanager
    async def late(path: str, body: Any) -> AsyncIterator[Any]:
        await arrive.wait()
        async with stream(path, body) as events:
            yield events

    monkeypatch.setattr(engine._caller, "stream", late)
    monkeypatch.setattr(sglang, "CUT_SECONDS", 0.2)
    before = server.scheduler.sampled
    async with asyncio.timeout(20):
        task = asyncio.create_task(engine.generate(ask(LONG)))
        pausing = asyncio.create_task(engine.pause(PauseMode.ABORT))
        while not server._frontend._paused:
            await asyncio.sleep(0.001)
        arrive.set()
        await pausing
        answer = await task
        assert answer.finish is FinishReason.ABORT
        check(plain, ask(LONG), answer)
        await engine.resume()
        await engine.generate(ask())
        while not server.scheduler.is_idle:
            await asyncio.sleep(0.001)
    assert server.scheduler.sampled - before < LONG


async def test_a_drain_has_a_deadline(
    served: tuple[SglangServer, SglangEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, engine = served
    monkeypatch.setattr(sglang, "COMMAND_SECONDS", 0.05, raising=False)
    [task] = await running(server, engine.generate(ask(LONG)))
    server.scheduler.do(lambda: server.scheduler.pause("in_place"))
    async with asyncio.timeout(20):
        with pytest.raises(EngineLostError, match="its last requests"):
            await engine.pause(PauseMode.DRAIN)
        server.scheduler.do(server.scheduler.go_on)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_request_that_was_moved_back_to_the_queue_keeps_what_was_told(
    served: tuple[SglangServer, SglangEngine], plain: PlainModel
) -> None:
    server, engine = served
    parts: list[Generation] = []
    request = ask(LONG)
    [task] = await running(server, engine.generate(request, parts.append))
    while len(parts) < 3:
        await asyncio.sleep(0.001)
    # As the server itself does when its cache is full.
    server.scheduler.do(lambda: server.scheduler.pause("retract"))
    await engine.pause(PauseMode.ABORT)
    answer = await task
    assert answer.finish is FinishReason.ABORT
    assert len(answer.ids) >= sum(len(part.ids) for part in parts)
    check(plain, request, answer)


async def test_a_server_that_was_left_paused_is_freed(tiny_llama_folder: Path) -> None:
    async with pair(tiny_llama_folder) as (server, engine):
        [task] = await running(server, engine.generate(ask(LONG)))
        await engine._caller.command("POST", "/pause_generation", {"mode": "in_place"})
        async with SglangEngine.connect(server.url, None) as other, asyncio.timeout(10):
            await other.pause(PauseMode.ABORT)
            assert (await task).finish is FinishReason.ABORT
            await other.resume()
            assert len((await other.generate(ask())).ids) == 8


async def test_what_is_served_and_whether_it_is_there(tiny_llama_folder: Path, files: list[WeightFile]) -> None:
    async with pair(tiny_llama_folder) as (server, engine):
        await engine.load(1, files[1])
        card = await engine.model()
        assert (card.source, card.max_context) == (str(tiny_llama_folder), 1024)
        await engine.pause(PauseMode.ABORT)
        await engine.lease(HOLDER, 60)
        async with SglangEngine.connect(server.url, None) as reader:
            assert reader.version == 1
            await reader.resume()
            assert set((await reader.generate(ask())).versions) == {1}
        await engine.resume()
        server.faults.die_after_tokens = 0
        with pytest.raises(EngineLostError):
            await engine.generate(ask())
        with pytest.raises(EngineLostError):
            await engine.lease(HOLDER, 60)


async def test_a_server_that_another_run_updates_or_that_was_started_again_is_noticed(
    tiny_llama_folder: Path, files: list[WeightFile]
) -> None:
    async with pair(tiny_llama_folder) as (server, engine):
        await engine.lease(HOLDER, 60)
        await engine.load(1, files[1])
        await engine.lease(HOLDER, 60)
        async with SglangEngine.connect(server.url, None, labels=VersionLabels("other", 0)) as other:
            await other.load(1, files[2])
        with pytest.raises(LeaseError, match="'other:0:1', which are not of run run"):
            await engine.lease(HOLDER, 60)
        port = server.port
        # As if nobody had touched it since it was started.
        await engine._caller.command("POST", "/update_weight_version", {"new_version": "default"})
        with pytest.raises(EngineLostError, match=f"{port} was started again"):
            await engine.lease(HOLDER, 60)


async def test_a_server_that_says_nothing_is_lost(tiny_llama_folder: Path) -> None:
    async with (
        serve_sglang(tiny_llama_folder) as server,
        SglangEngine.connect(server.url, None, labels=LABELS, silence_seconds=0.2) as engine,
    ):
        server.faults.hang = True
        async with asyncio.timeout(5):
            with pytest.raises(EngineLostError, match="it says nothing"):
                await engine.generate(ask())


async def test_a_prompt_at_the_end_of_the_context_has_no_room(served: tuple[SglangServer, SglangEngine]) -> None:
    answer = await served[1].generate(ask(2, prompt=[7] * 1022))
    assert (answer.ids, answer.finish) == ((), FinishReason.LENGTH)


async def test_logprobs_before_temperature_are_refused(tiny_llama_folder: Path) -> None:
    with pytest.raises(ModelError, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
        async with pair(tiny_llama_folder, Options(return_original_logprob=True)):
            pass


async def test_a_server_of_several_copies_is_refused_for_training_only(tiny_llama_folder: Path) -> None:
    options = Options(dp_size=2)
    with pytest.raises(ModelError, match="dp_size 2"):
        async with pair(tiny_llama_folder, options):
            pass
    async with pair(tiny_llama_folder, options, labels=None) as (_, engine):
        assert len((await engine.generate(ask())).ids) == 8


async def test_a_server_that_dies_in_an_update_is_replaced_and_its_answers_go_on(
    tiny_llama_folder: Path, plain: PlainModel, files: list[WeightFile], quick_restarts: None
) -> None:
    """Two servers. One dies in an update: the other takes its requests, and a new one gets the weights."""
    servers: list[SglangServer] = []

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        async with pair(tiny_llama_folder) as (server, engine):
            servers.append(server)

            async def died() -> str:
                await server.dead.wait()
                return "it died"

            yield Worker(engine, died)

    request = ask(60)
    async with RolloutController.open([launch, launch]) as controller:
        tasks = await running_somewhere(controller, servers, request)
        await controller.pause(PauseMode.ABORT)
        servers[0].faults.die_in_update = True
        await controller.load(1, files[1])
        await controller.resume()
        for task in tasks:
            answer = await task
            assert len(answer.ids) == 60
            assert set(answer.versions) == {0, 1}
            check(plain, request, answer)
        async with asyncio.timeout(20):
            while len(servers) < 3:
                await asyncio.sleep(0.01)


async def running_somewhere(
    controller: RolloutController, servers: list[SglangServer], request: GenerateRequest
) -> list[asyncio.Task[Generation]]:
    tasks = [asyncio.ensure_future(controller.generate(request)) for _ in range(2)]
    async with asyncio.timeout(20):
        while sum(len(server.scheduler.running) for server in servers) < 2:
            await asyncio.sleep(0.0005)
    return tasks
