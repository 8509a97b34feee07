"""What may befall engines on actors: killed in the middle of answers, all gone, a model that is not there, and a node
that goes and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_parts import engine_whose_second_start_fails
from engine_weights_contract import ReferenceModel
from ray_nodes import Nodes, OnNode, engine_role, simulated_nodes

from loopwright.build.engine_actors import EngineActors, torch_actor
from loopwright.build.serving import ServedModel
from loopwright.engines.controller import RolloutController
from loopwright.errors import BudgetError, ModelError
from loopwright.testing.tiny import tiny_llama
from loopwright.types import UNKNOWN_CAPACITY, GenerateRequest, PauseMode, Sampling

TOKENS = 200
SECONDS = 120


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """A model of many layers, computed by torch: it takes a while to answer, and can be met in the middle."""
    folder = tiny_llama(tmp_path_factory.mktemp("deep"), num_hidden_layers=12, initializer_range=0.2)
    return ServedModel(
        str(folder),
        folder,
        dtype="float32",
        max_context=None,
        threads=1,
        max_batch=8,
        cache_tokens=0,
        native=False,
    )


@pytest.fixture(scope="module")
def nodes(shared_ray: Any) -> Iterator[Nodes]:
    """A cluster of their own for tests in which nodes come and go. The driver's node has room for two engines of one
    CPU."""
    shared_ray.down()
    with simulated_nodes(num_cpus=2) as simulated:
        yield simulated


@asynccontextmanager
async def engines(
    served: ServedModel, count: int, *, cpus: float = 1.0, **options: Any
) -> AsyncIterator[tuple[RolloutController, OnNode]]:
    """So many engines on actors behind a controller, wherever there is room."""
    from loopwright.cluster.engine import StoredWeights

    on, weights = OnNode(None), StoredWeights()
    actors = EngineActors(on, engine_role(count, cpus))  # type: ignore[arg-type]
    launches = [partial(torch_actor, actors, number, served, weights, UNKNOWN_CAPACITY) for number in range(count)]
    async with RolloutController.open(launches, **options) as controller:
        yield controller, on


def ask(seed: int, tokens: int = TOKENS) -> GenerateRequest:
    return GenerateRequest(f"a/{seed}", (5, 6, 7), Sampling(temperature=0.7, max_new_tokens=tokens, seed=seed))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def under_way(controller: RolloutController) -> None:
    before = controller.steps
    await until(lambda: controller.steps >= before + 10)


def ray_kill(host: Any) -> None:
    import ray

    ray.kill(host._handle)


def kill_9(host: Any) -> None:
    os.kill(host.started.pid, signal.SIGKILL)


@pytest.mark.real
async def test_a_killed_actor_costs_no_token(two_nodes: Any, served: ServedModel) -> None:
    deaths: list[str] = []
    async with engines(served, 2, on_death=deaths.append) as (controller, on):
        requests = [ask(seed) for seed in range(4)]
        expected = await asyncio.gather(*map(controller.generate, requests))
        for number, kill in enumerate((ray_kill, kill_9), 1):
            calls = [asyncio.create_task(controller.generate(request)) for request in requests]
            await under_way(controller)
            kill(on.hosts[number])
            async with asyncio.timeout(SECONDS):
                answers = await asyncio.gather(*calls)
            for got, wanted in zip(answers, expected, strict=True):
                assert (got.ids, got.finish, got.versions) == (wanted.ids, wanted.finish, wanted.versions)
                assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
            await until(lambda started=number + 2: len(on.hosts) == started and len(controller._pool.running) == 2)  # type: ignore[misc]
            assert len(deaths) == number
            assert "ActorDiedError" in deaths[-1]
    assert len({host.started.incarnation for host in on.hosts}) == 4


@pytest.mark.real
async def test_when_all_actors_are_gone_the_callers_are_told_why(two_nodes: Any, served: ServedModel) -> None:
    async with engines(served, 2, max_restarts=0) as (controller, on):
        call = asyncio.create_task(controller.generate(ask(0, 900)))
        await under_way(controller)
        for host in on.hosts:
            kill_9(host)
        with pytest.raises(BudgetError, match="was lost 1 times without answering") as told:
            async with asyncio.timeout(SECONDS):
                await call
        assert "ActorDiedError" in told.value.message


@pytest.mark.real
async def test_a_restart_that_fails_costs_the_budget_and_not_the_run(
    two_nodes: Any, served: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = partial(engine_whose_second_start_fails, str(tmp_path / "starts"))
    monkeypatch.setattr("loopwright.build.engine_actors.hosted_engine", opening)
    deaths: list[str] = []
    async with engines(served, 1, on_death=deaths.append) as (controller, on):
        kill_9(on.hosts[0])
        async with asyncio.timeout(SECONDS):
            await until(lambda: not controller._pool.running)
            assert len((await controller.generate(ask(0, 3))).ids) == 3
    assert [words.partition(":")[0] for words in deaths] == ["ActorDiedError", f"{on.hosts[0].name} did not start"]
    assert "OSError: [Errno 98] the address is in use" in deaths[1]


@pytest.mark.real
async def test_an_actor_that_dies_in_an_update_is_replaced_by_one_with_the_new_weights(
    two_nodes: Any, served: ServedModel, tmp_path: Path
) -> None:
    """In the first update while it loads, in the second while it is proven."""
    victims: list[Any] = []
    proven: list[tuple[str, int]] = []

    async def prove(name: str, engine: Any, version: int) -> None:
        if victims:
            kill_9(victims.pop())
        await engine.probe(ask(0, 1))
        proven.append((name, version))

    reference = ReferenceModel(Path(served.model))
    async with engines(served, 2, prove=prove) as (controller, on):
        for version in (1, 2):
            reference.move()
            file = reference.write(tmp_path / f"w-{version}")
            await controller.pause(PauseMode.ABORT)
            if version == 1:
                kill_9(on.hosts[0])
            else:
                victims.append(on.hosts[1])
            await controller.load(version, file)
            await controller.resume()
            assert (await controller.generate(ask(0, 3))).versions == (version,) * 3
            await until(lambda count=version + 2: len(on.hosts) == count and len(controller._pool.running) == 2)  # type: ignore[misc]
            assert [member.engine.version for member in controller._pool.running if member.engine] == [version] * 2
    assert sorted(proven) == [("0", 1), ("0", 2), ("1", 1), ("1", 2)]


@pytest.mark.real
async def test_a_model_that_a_node_does_not_have_is_told_before_anything_else(
    two_nodes: Any, served: ServedModel, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="no-such-model") as told:
        async with asyncio.timeout(SECONDS), engines(replace(served, model=str(tmp_path / "no-such-model")), 1):
            pass
    assert told.value.remedy


@pytest.mark.long
async def test_an_engine_whose_node_is_gone_waits_for_room_and_comes_back_with_the_newest_weights(
    nodes: Nodes, served: ServedModel, tmp_path: Path
) -> None:
    """Its node's death is the only one that counts: no engine may be lost twice here."""
    from loopwright.cluster.node import this_node

    node, reference = nodes.add(num_cpus=1), ReferenceModel(Path(served.model))
    async with engines(served, 3, max_restarts=1) as (controller, on):
        elsewhere = [host.started.node for host in on.hosts].count(node.node_id)
        assert elsewhere == 1
        calls = [asyncio.create_task(controller.generate(ask(seed))) for seed in range(3)]
        await under_way(controller)
        nodes.remove(node)
        async with asyncio.timeout(SECONDS):
            assert [len((await call).ids) for call in calls] == [TOKENS] * 3
        await until(lambda: len(controller._pool.running) == 2)
        reference.move()
        await controller.pause(PauseMode.ABORT)
        await controller.load(1, reference.write(tmp_path / "w"))
        await controller.resume()
        assert len(controller._pool.running) == 2
        nodes.add(num_cpus=1)
        await until(lambda: len(controller._pool.running) == 3)
        assert on.hosts[-1].started.node not in (this_node(), node.node_id)
        assert [member.engine.version for member in controller._pool.running if member.engine] == [1] * 3


@pytest.mark.long
async def test_a_run_ends_while_an_engine_waits_for_room(nodes: Nodes, served: ServedModel) -> None:
    async with asyncio.timeout(SECONDS), engines(served, 1) as (controller, _):
        waiting = asyncio.create_task(_opened(served))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=10)
        assert waiting.cancelled()
        assert len((await controller.generate(ask(0, 3))).ids) == 3


async def _opened(served: ServedModel) -> None:
    """Engines for which there is never room."""
    async with engines(served, 1, cpus=64):
        pass
