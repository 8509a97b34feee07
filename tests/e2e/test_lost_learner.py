"""Runs whose learner is lost, as if one of its ranks had died: they go on from the last checkpoint in the same process,
with the same engines, and leave what a run leaves that was killed and resumed there."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from losing import Losses
from safetensors.numpy import load_file

from loopwright.build import lineage, open_run
from loopwright.build.running import Run
from loopwright.build.serving import ServedModel, serve_engine
from loopwright.config import load
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.model_card import ModelCard
from loopwright.errors import LearnerLostError, RunError
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.scripted_server import serve_scripted
from loopwright.track.jsonl import read_jsonl
from loopwright.types import FinishReason, GenerateRequest, Generation, GroupStatus, Sampling

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-engine"
LETTERS = range(20, 60)
COLOCATED: dict[str, Any] = {"trainer__kind": "colocate"}
APART: dict[str, Any] = {"trainer__kind": "disaggregated", "produce": {"kind": "async", "max_staleness": 0}}
KINDS = pytest.mark.parametrize("kind", [COLOCATED, APART], ids=["colocated", "disaggregated"])


def answer(request: GenerateRequest) -> tuple[int, ...]:
    """The same for the same member of a group, whoever asks and when."""
    said = blake2b(f"{request.sampling.seed} {request.prompt_ids}".encode(), digest_size=4).digest()
    return tuple(LETTERS[byte % len(LETTERS)] for byte in said)


def settings(url: str, proof: str = "off", **more: Any) -> dict[str, Any]:
    engine = {"kind": "loopwright", "urls": [url], "key_env": "ENGINE_KEY", "proof": proof}
    return {"rollout__engine": engine, "trainer__steps": 4, "eval": None, **more}


@asynccontextmanager
async def opened(
    file: Path,
    losses: Losses,
    monkeypatch: pytest.MonkeyPatch,
    *,
    restarts: int = 3,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Run]:
    monkeypatch.setattr(lineage, "open_learner", losses.opener())
    loaded = load(file, [f"learner.max_restarts={restarts}"], {"ENGINE_KEY": KEY})
    stop = stop or asyncio.Event()
    async with open_run(loaded, cache=file.parent, stop=stop, env=os.environ) as run:
        yield run


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[tuple[ScriptedEngine, str]]:
    scripted = ScriptedEngine(answer, steps=2)
    async with serve_scripted(scripted, ModelCard(str(tiny_model), 1024), key=KEY) as url:
        yield scripted, url


def events(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(folder.events) if event["name"] == name]


def metric(folder: RunFolder, name: str) -> dict[int, float]:
    found = [record["step"] for record in read_jsonl(folder.metrics) if name in record]
    assert len(found) == len(set(found)), "no step is told twice"
    return {record["step"]: record[name] for record in read_jsonl(folder.metrics) if name in record}


def check_whole(folder: RunFolder, losses: Losses, *, steps: int = 4) -> None:
    """All steps were trained, each once in the end, and the ledger knows every opening."""
    assert StoredRun(folder.rollouts).steps() == tuple(range(1, steps + 1))
    audited = audit(folder.rollouts)
    assert (audited.findings, audited.lineages) == ((), len(losses.versions))
    assert StoredRun(folder.rollouts).opened_at() == tuple(losses.versions)
    assert list(metric(folder, "learner/loss")) == list(range(1, steps + 1))
    assert not list(folder.checkpoints.glob(".*")), "no half checkpoint is left"
    assert len(events(folder, "learner_lost")) == len(losses.versions) - 1


async def weights_of_a_whole_run(
    write_config: WriteConfig, url: str, kind: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Those of a run that lost nothing."""
    with pytest.MonkeyPatch.context() as patched:
        file = write_config(**settings(url, **kind, trainer__run_dir=str(path)))
        async with opened(file, Losses([]), patched) as run:
            assert await run.train()
        return dict(load_file(run.folder.export / "model.safetensors"))


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    assert all((one[name] == other[name]).all() for name in one)


@KINDS
@pytest.mark.parametrize(
    ("at", "versions"),
    [
        ([("step", 1)], [0, 0]),
        ([("step", 3)], [0, 2]),
        ([("publish", 4)], [0, 2]),
        ([("save", 1)], [0, 0]),
        ([("save", 2)], [0, 2]),
        ([("export", 1)], [0, 4]),
        ([("step", 3), ("open", 2), ("publish", 4)], [0, 2, 2, 2]),
    ],
    ids=[
        "before a checkpoint",
        "in a step",
        "in a publish",
        "in the first save",
        "in a save",
        "in the export",
        "often",
    ],
)
async def test_a_run_goes_on_from_its_last_checkpoint(
    write_config: WriteConfig,
    engine: tuple[ScriptedEngine, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: dict[str, Any],
    at: Sequence[tuple[str, int]],
    versions: list[int],
) -> None:
    scripted, url = engine
    losses = Losses(at)
    async with opened(write_config(**settings(url, **kind)), losses, monkeypatch) as run:
        first = run.learner
        assert await run.train()
        assert run.is_finished
        assert run.learner is not first
    assert losses.versions == versions
    check_whole(run.folder, losses)
    assert scripted.version == 4
    lost = events(run.folder, "learner_lost")[0]["facts"]
    assert (lost["rank"], lost["last_words"], lost["checkpoint"]) == (1, "Killed", versions[1])
    restarts = metric(run.folder, "learner/restarts")
    assert restarts == {step: len(versions) - 1 for step in range(versions[1] + 1, 5)}
    found = dict(load_file(run.folder.export / "model.safetensors"))
    assert_equal(found, await weights_of_a_whole_run(write_config, url, kind, run.path.with_name("whole")))


@KINDS
async def test_it_leaves_the_weights_of_a_run_that_was_killed_and_resumed_there(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    _, url = engine
    async with opened(write_config(**settings(url, **kind)), Losses([("step", 3)]), monkeypatch) as run:
        assert await run.train()
    killed = write_config(**settings(url, **kind, trainer__run_dir=str(run.path.with_name("killed"))))
    with pytest.raises(LearnerLostError):
        # Without restarts the loss ends the process, and nothing after the checkpoint is saved.
        async with opened(killed, Losses([("step", 3)]), monkeypatch, restarts=0) as first:
            await first.train()
    async with opened(killed, Losses([]), monkeypatch) as resumed:
        assert resumed.version == 2
        assert await resumed.train()
    one, other = (load_file(folder.export / "model.safetensors") for folder in (run.folder, resumed.folder))
    assert_equal(dict(one), dict(other))
    trained = [
        [(one.key, one.episode and one.episode.answer) for one in StoredRun(folder.rollouts).rollouts(step)]
        for folder in (run.folder, resumed.folder)
        for step in range(1, 5)
    ]
    assert trained[:4] == trained[4:]


@KINDS
@pytest.mark.parametrize("call", [2, 4])
async def test_engines_are_proven_again_before_anything_is_sampled(
    write_config: WriteConfig, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], call: int
) -> None:
    """A learner that is lost in the middle of a proof, with an engine that computes."""
    served = ServedModel(str(tiny_model), tiny_model.parent, "float32", None, 1, 16, 0)
    losses = Losses([("logprobs", call)])
    async with serve_engine(served, host="127.0.0.1", port=0, key=KEY) as port:
        file = write_config(**settings(f"http://127.0.0.1:{port}", "on", **kind))
        async with opened(file, losses, monkeypatch) as run:
            assert await run.train()
    check_whole(run.folder, losses)
    assert len(losses.versions) == 2
    mismatch = metric(run.folder, "learner/mismatch_mean")
    assert list(mismatch) == [1, 2, 3, 4]
    assert max(mismatch.values()) < 1e-4, "tokens are trained by the weights that sampled them"
    assert not events(run.folder, "engine_lost"), "the engine stayed"


async def test_the_last_loss_ends_the_run_and_the_next_one_goes_on(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config(**settings(engine[1], **APART))
    losses = Losses([("step", 3), ("step", 4), ("step", 5)])
    with pytest.raises(LearnerLostError, match="signal 9") as caught:
        async with opened(file, losses, monkeypatch, restarts=2) as run:
            await run.train()
    assert "losses since the checkpoint of step 2: 3" in str(caught.value.__notes__)
    assert caught.value.remedy.startswith("the run has ended: mend the cause, and the same command goes on")
    assert losses.versions == [0, 2, 2]
    assert audit(run.folder.rollouts).is_clean
    assert not run.is_finished
    with pytest.raises(RunError, match="closed"):
        await run.step()
    async with opened(file, Losses([]), monkeypatch) as run:
        assert await run.train()
    assert StoredRun(run.folder.rollouts).steps() == (1, 2, 3, 4)


@KINDS
@pytest.mark.parametrize("steps_before", [0, 2])
async def test_a_learner_that_is_lost_while_the_run_is_opened_is_opened_again(
    write_config: WriteConfig,
    engine: tuple[ScriptedEngine, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: dict[str, Any],
    steps_before: int,
) -> None:
    scripted, url = engine
    file = write_config(**settings(url, **kind))
    if steps_before:
        async with opened(file, Losses([]), monkeypatch) as run:
            for _ in range(steps_before):
                await run.step()
    losses = Losses([("open", 1), ("open", 2)])
    async with opened(file, losses, monkeypatch, restarts=2) as run:
        assert run.version == steps_before
        assert await run.train()
    assert losses.versions == [steps_before] * 3
    assert StoredRun(run.folder.rollouts).steps() == (1, 2, 3, 4)
    assert audit(run.folder.rollouts).is_clean
    assert scripted.version == 4
    lost = [(event["step"], event["facts"]["checkpoint"]) for event in events(run.folder, "learner_lost")]
    assert lost == [(steps_before, steps_before)] * 2
    assert set(metric(run.folder, "learner/restarts").values()) == {2}
    found = dict(load_file(run.folder.export / "model.safetensors"))
    assert_equal(found, await weights_of_a_whole_run(write_config, url, kind, run.path.with_name("whole")))


async def test_losses_while_the_run_is_opened_are_counted(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config(**settings(engine[1], **APART))
    losses = Losses([("open", 1), ("open", 2), ("open", 3)])
    with pytest.raises(LearnerLostError, match="signal 9") as caught:
        async with opened(file, losses, monkeypatch, restarts=1):
            raise AssertionError("it cannot be open")
    assert losses.versions == [0, 0]
    assert "losses since the checkpoint of step 0: 2" in str(caught.value.__notes__)
    assert "or begins again if there is none" in caught.value.remedy
    # One while it is opened, and one while it trains: none has led to a checkpoint.
    losses = Losses([("open", 1), ("step", 1)])
    with pytest.raises(LearnerLostError):
        async with opened(file, losses, monkeypatch, restarts=1) as run:
            await run.train()
    assert losses.versions == [0, 0]


async def test_a_run_that_is_to_stop_while_its_learner_is_lost_at_opening_ends_by_the_loss(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = asyncio.Event()

    async def is_to_stop() -> None:
        stop.set()

    losses = Losses([("open", 1)], before_losing=is_to_stop)
    with pytest.raises(LearnerLostError, match="signal 9"):
        async with opened(write_config(**settings(engine[1], **APART)), losses, monkeypatch, stop=stop):
            raise AssertionError("it cannot be open")
    assert losses.versions == [0]


async def test_a_new_checkpoint_gives_the_restarts_back(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = Losses([("step", 1), ("step", 4)])
    async with opened(write_config(**settings(engine[1], **COLOCATED)), losses, monkeypatch, restarts=1) as run:
        assert await run.train()
    assert losses.trained == [1, 1, 2, 3, 3, 4]
    check_whole(run.folder, losses)


@KINDS
async def test_a_run_that_is_to_stop_is_not_opened_again(
    write_config: WriteConfig,
    engine: tuple[ScriptedEngine, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, file = asyncio.Event(), write_config(**settings(engine[1], **kind))

    async def is_to_stop() -> None:
        stop.set()

    losses = Losses([("step", 3)], before_losing=is_to_stop)
    async with opened(file, losses, monkeypatch, stop=stop) as run:
        assert not await run.train()
        assert await run.step() is None
        assert run.lost_steps == range(3, 4), "they have no checkpoint"
    assert "Step 3 is lost with the learner, and the same command goes on from step 2." in caplog.text
    assert losses.versions == [0]
    assert [path.name for path in run.folder.checkpoints.iterdir()] == ["step-000002"]
    again = Losses([])
    async with opened(file, again, monkeypatch) as run:
        assert await run.train()
    assert again.versions == [2]
    assert audit(run.folder.rollouts).is_clean


async def test_a_loss_while_the_run_is_closed_is_told(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was learned since the last checkpoint is lost, and nobody needs the learner any more."""
    losses = Losses([("save", 1)])
    with pytest.raises(LearnerLostError):
        async with opened(write_config(**settings(engine[1], **COLOCATED)), losses, monkeypatch) as run:
            await run.step()
    assert losses.versions == [0]
    assert not run.folder.checkpoints.exists() or not list(run.folder.checkpoints.iterdir())


AGENT = """
import asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

ended = []

async def asks_again(task, base_url, api_key):
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http) as client:
        messages = list(task.messages)
        try:
            for _ in range(2):
                reply = await client.chat.completions.create(model="m", messages=messages)
                messages += [reply.choices[0].message, {"role": "user", "content": "Go on."}]
        finally:
            ended.append(base_url)
"""


@pytest.mark.parametrize("checkpoint_every", [1, 2])
async def test_agents_of_the_lost_lineage_end_and_their_rollouts_are_made_again(
    write_config: WriteConfig,
    engine: tuple[ScriptedEngine, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checkpoint_every: int,
) -> None:
    """Those of version 1 are in the middle of it while step 2 trains those of version 0. A checkpoint may have that
    version, or not."""
    scripted, url = engine
    (tmp_path / "agents.py").write_text(AGENT)
    ahead = {"kind": "async", "max_staleness": 1, "in_flight": "keep"}
    more = {"agent": {"kind": "callable", "path": "agents.py:asks_again", "judger": "vowels"}, "produce": ahead}
    hang = [True]

    async def answers_are_under_way() -> None:
        async with asyncio.timeout(20):
            while not scripted._live:
                await asyncio.sleep(0.001)
        hang.clear()

    # With these weights it never gets to the end of an answer.
    monkeypatch.setattr(scripted, "_seconds", lambda request: 600.0 if hang and scripted.version == 1 else 0.001)
    losses = Losses([("step", 2)], answers_are_under_way)
    file = write_config(**settings(url, **APART | more, trainer__checkpoint_every=checkpoint_every))
    async with opened(file, losses, monkeypatch) as run:
        assert await asyncio.wait_for(run.train(), 60)
    check_whole(run.folder, losses)
    assert losses.versions == [0, 2 - checkpoint_every]
    lost = audit(run.folder.rollouts).task_sets["train"].standing[GroupStatus.ROLLED_BACK].groups
    assert (lost > 0) == (checkpoint_every == 2), "groups of weights that are lost are rolled back, and no others"
    for step in range(1, 5):
        for rollout in StoredRun(run.folder.rollouts).rollouts(step):
            assert rollout.episode is not None
            versions = {int(version) for chain in rollout.episode.chains for version in chain.versions} - {-1}
            assert versions <= {step - 2, step - 1}


async def test_what_others_ask_meanwhile_is_cut_off_and_then_waits_for_proven_weights(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here somebody at the run's door."""
    scripted, url = engine
    asked: list[asyncio.Task[Generation]] = []

    async def somebody_asks() -> None:
        asked.append(
            asyncio.create_task(client.generate(GenerateRequest("mine/0", (5, 6), Sampling(max_new_tokens=4))))
        )
        async with asyncio.timeout(20):
            while "mine/0" not in str(scripted._live):
                await asyncio.sleep(0.001)

    # It would never get to its end.
    monkeypatch.setattr(scripted, "_seconds", lambda request: 600.0 if "mine" in request.id else 0.001)
    losses = Losses([("step", 3)], somebody_asks)
    async with opened(write_config(**settings(url, **APART, rollout__door={})), losses, monkeypatch) as run:
        door = json.loads(run.folder.door.read_text())
        async with HttpEngine.connect(door["url"], door["key"]) as client:
            assert await run.train()
            cut = await asyncio.wait_for(asked[0], 5)
    assert cut.finish is FinishReason.ABORT
    assert len(cut.ids) < 4
    assert losses.versions == [0, 2]


EVALUATION = {
    "data": {"kind": "python", "path": "tasks.py:heldout"},
    "agent": {"kind": "single_turn", "judger": "vowels"},
    "every": 1,
}


@pytest.mark.parametrize("buffer", ["memory", "sqlite"])
async def test_what_was_made_for_the_checkpoint_is_not_made_again(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch, buffer: str
) -> None:
    """The groups of step 3 were sampled with the weights of the checkpoint of step 2, and these were evaluated."""
    scripted, url = engine
    losses = Losses([("step", 3)])
    file = write_config(**settings(url, **COLOCATED, buffer__kind=buffer) | {"eval": EVALUATION})
    async with opened(file, losses, monkeypatch) as run:
        assert await run.train()
    assert losses.trained == [1, 2, 3, 3, 4]
    assert list(metric(run.folder, "learner/loss")) == [1, 2, 3, 4]
    times = Counter(request.id for request in scripted.requests if request.id.startswith("train/"))
    assert set(times.values()) == {1}, "no member is sampled twice"
    evaluated = Counter((event["step"], event["facts"]["mode"]) for event in events(run.folder, "evaluate"))
    assert {step for step, _ in evaluated} == set(range(5))
    assert set(evaluated.values()) == {1}


async def test_a_run_without_a_database_that_is_opened_again_draws_new_tasks_after_a_loss(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger knows nothing of the draws before the checkpoint that it was opened at."""
    scripted, url = engine
    file = write_config(**settings(url, **COLOCATED, buffer__kind="memory", trainer__checkpoint_every=1))
    async with opened(file, Losses([]), monkeypatch) as run:
        await run.step()
        await run.step()
    before = {(request.sampling.seed, request.prompt_ids) for request in scripted.requests}
    scripted.requests.clear()
    async with opened(file, Losses([("step", 1)]), monkeypatch) as run:
        assert await run.train()
    assert not before & {(request.sampling.seed, request.prompt_ids) for request in scripted.requests}


async def test_an_evaluation_and_rollouts_outlive_the_learner(
    write_config: WriteConfig, engine: tuple[ScriptedEngine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both publish the present weights before they sample."""
    evaluation = {
        "data": {"kind": "python", "path": "tasks.py:heldout"},
        "agent": {"kind": "single_turn", "judger": "vowels"},
    }
    losses = Losses([("publish", 1), ("publish", 3)])
    file = write_config(**settings(engine[1], **APART) | {"eval": evaluation})
    async with opened(file, losses, monkeypatch) as run:
        assert await run.evaluate()
        assert losses.versions == [0, 0]
        await run.step()
        assert len(await run.roll_out(1)) == 4
        assert losses.versions == [0, 0, 0]
        assert await run.train()
    check_whole(run.folder, losses)
