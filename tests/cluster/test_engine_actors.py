"""The contracts of engines, asked of an engine on an actor: on the driver's node, where it reads files, and on another
node, where weights come through Ray's object store."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engine_contract import KeepingContract, Update
from engine_weights_contract import ReferenceModel, WeightsContract
from ray_nodes import OnNode, engine_role

from loopwright.build.engine_actors import EngineActors, torch_actor
from loopwright.build.serving import ServedModel, opened_engine
from loopwright.engines.http.client import HttpEngine
from loopwright.errors import WeightsError
from loopwright.models.weight_files import checksum_text
from loopwright.ports import PauseMode, StreamingEngine
from loopwright.testing.tiny import tiny_llama
from loopwright.types import UNKNOWN_CAPACITY, GenerateRequest, Sampling, WeightFile

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PLACES = ("here", "elsewhere")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of many layers, computed by torch: it takes a while to answer, and can be met in the middle."""
    return tiny_llama(tmp_path_factory.mktemp("deep"), num_hidden_layers=12, initializer_range=0.2)


@pytest.fixture(scope="module")
def served(model_folder: Path) -> ServedModel:
    return ServedModel(
        str(model_folder),
        model_folder,
        dtype="float32",
        max_context=None,
        threads=1,
        max_batch=32,
        cache_tokens=4096,
        native=False,
    )


@pytest.fixture(scope="module")
def initial(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> WeightFile:
    return ReferenceModel(model_folder).write(tmp_path_factory.mktemp("weights") / "w-0")


@dataclass(frozen=True, slots=True)
class Actors:
    """One engine on each of two nodes, and what was put into the object store for them."""

    engines: Mapping[str, StreamingEngine]
    weights: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def actors(shared_ray: Any, served: ServedModel) -> AsyncIterator[Actors]:
    from loopwright.cluster.engine import StoredWeights

    nodes = shared_ray.two_nodes()
    weights = StoredWeights()
    async with AsyncExitStack() as stack:
        starting = []
        for place in PLACES:
            on: Any = OnNode(getattr(nodes, place))
            launch = torch_actor(EngineActors(on, engine_role()), 0, served, weights, UNKNOWN_CAPACITY)
            starting.append(stack.enter_async_context(launch))
        workers = await asyncio.gather(*starting)
        engines = [worker.engine for worker in workers]
        yield Actors(dict(zip(PLACES, engines, strict=True)), weights)


@pytest_asyncio.fixture(loop_scope="module", params=PLACES)
async def engine(request: pytest.FixtureRequest, actors: Actors, initial: WeightFile) -> AsyncIterator[StreamingEngine]:
    """With its first weights as version 0, whatever the test before has left."""
    found = actors.engines[request.param]
    await found.pause(PauseMode.ABORT)
    await found.load(0, initial)
    await found.resume()
    yield found
    await found.pause(PauseMode.ABORT)


# On the driver's node there is nothing more than this: an engine over HTTP, which has this contract elsewhere too.
@pytest.mark.parametrize("engine", ["elsewhere"], indirect=True)
class TestEngine(KeepingContract):
    @pytest.fixture
    def update(self, initial: WeightFile) -> Update:
        return lambda version: initial


class TestWeights(WeightsContract):
    @pytest.fixture
    def reference(self, model_folder: Path) -> ReferenceModel:
        return ReferenceModel(model_folder)


async def test_an_engine_on_an_actor_samples_what_the_one_here_samples(
    engine: StreamingEngine, served: ServedModel, model_folder: Path, tmp_path: Path
) -> None:
    """For the same seeds, before and after an update."""
    reference = ReferenceModel(model_folder)
    async with opened_engine(served) as (own, _):
        for version in (0, 1):
            if version:
                reference.move()
                file = reference.write(tmp_path / "w")
                for one in (own, engine):
                    await one.load(version, file)
            for seed in range(6):
                sampling = Sampling(temperature=0.7, max_new_tokens=24, seed=seed)
                request = GenerateRequest(f"r/{version}.{seed}", (5, 6, 7, seed), sampling)
                expected, got = [await one.generate(request) for one in (own, engine)]
                assert (got.ids, got.versions) == (expected.ids, expected.versions)
                assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


async def test_weights_take_the_way_that_fits_the_node(actors: Actors) -> None:
    from loopwright.cluster.engine import ObjectStoreEngine

    assert isinstance(actors.engines["here"], HttpEngine)
    assert isinstance(actors.engines["elsewhere"], ObjectStoreEngine)


async def test_a_version_is_put_once_and_freed_when_another_one_comes(
    actors: Actors, model_folder: Path, tmp_path: Path
) -> None:
    import ray

    reference, weights = ReferenceModel(model_folder), actors.weights
    files = []
    for version in (1, 2):
        reference.move()
        files.append(reference.write(tmp_path / f"w-{version}"))
    first = await weights.reference(files[0])
    assert await weights.reference(files[0]) is first
    stored = await asyncio.to_thread(ray.get, first)
    assert (stored.nbytes, checksum_text(zlib.crc32(stored))) == (files[0].bytes, files[0].checksum)
    number = first.binary()
    del first, stored
    await weights.reference(files[1])
    # Looks, and does not count as a user.
    gone = ray.ObjectRef(number, skip_adding_local_ref=True)
    async with asyncio.timeout(10):
        while ray._private.worker.global_worker.core_worker.object_exists(gone):
            await asyncio.sleep(0.01)


async def test_bytes_that_are_not_those_of_the_manifest_are_refused_by_the_actor(
    actors: Actors, initial: WeightFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may hold whatever: the engine checks what arrives (W3)."""
    engine: Any = actors.engines["elsewhere"]
    await engine.resume()
    await engine.load(5, initial)
    for wrong in (replace(initial, checksum="crc32:00000000"), replace(initial, bytes=initial.bytes + 1)):
        reference = await actors.weights.reference(initial)
        with pytest.raises(WeightsError, match="nothing was changed"):
            await engine._host.call("load", 6, wrong, reference)
    assert engine.version == 5
    assert (await engine.generate(GenerateRequest("r", (5, 6), Sampling(max_new_tokens=2)))).versions == (5, 5)
