"""Wherever the connection of a worker is cut, the answer is that of one that was not, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relay_house import Cable, RelayHouse, relay_house

from loopwright.engines import restartable
from loopwright.engines.torch.engine import TorchEngine
from loopwright.gateway.relay import dialer
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.types import GenerateRequest, Generation, Sampling

TOKENS = 24


@asynccontextmanager
async def _house(folder: Path, model: Path) -> AsyncIterator[tuple[RelayHouse, TorchEngine, Cable]]:
    """Two workers with the same engine: one behind a cable, and one that takes over now and then."""
    with ComputeThread() as compute:
        loaded = await compute.run(load_model, str(model), cache=folder, dtype="float32")
        async with (
            TorchEngine(loaded, compute) as engine,
            relay_house(folder) as house,
            Cable(house.gateway.port).laid() as cable,
        ):
            await house.worker("cut", engine, url=cable.url)
            yield house, engine, cable


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as opened:
        yield opened


def _same(one: Generation, other: Generation) -> None:
    assert one.ids == other.ids
    assert one.versions == other.versions
    assert one.finish is other.finish
    assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < 1e-4
    assert [len(told) for told in one.alternatives] == [2] * len(one.ids)
    assert [told[0][0] for told in one.alternatives] == [told[0][0] for told in other.alternatives]


def test_a_cut_changes_no_token(
    runner: asyncio.Runner,
    tiny_llama_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(dialer, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(restartable, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(restartable, "LONGEST_PAUSE_SECONDS", 0.01)
    folder = tmp_path_factory.mktemp("relay")
    opening = _house(folder, tiny_llama_folder)
    house, engine, cable = runner.run(opening.__aenter__())

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(
        seed=some.integers(0, 1 << 30),
        prompt=some.lists(some.integers(3, 250), min_size=1, max_size=12).map(tuple),
        cuts=some.sets(some.integers(1, TOKENS - 1), max_size=2),
        early=some.booleans(),
    )
    def cut(seed: int, prompt: tuple[int, ...], cuts: set[int], early: bool) -> None:
        runner.run(_cut(house, engine, cable, seed, prompt, cuts, early))

    try:
        cut()
    finally:
        runner.run(opening.__aexit__(None, None, None))


async def _cut(
    house: RelayHouse,
    engine: TorchEngine,
    cable: Cable,
    seed: int,
    prompt: tuple[int, ...],
    cuts: set[int],
    early: bool,
) -> None:
    sampling = Sampling(max_new_tokens=TOKENS, seed=seed, temperature=0.8)
    request = GenerateRequest(f"s{seed}/0", prompt, sampling, part_tokens=1, alternatives=2)
    whole = await engine.generate(request)
    heard: list[Generation] = []
    left = set(cuts)

    def hear(part: Generation) -> None:
        heard.append(part)
        tokens = sum(len(one.ids) for one in heard)
        if any(place <= tokens for place in left):
            left.difference_update(range(tokens + 1))
            cable.cut()

    served = await house.gateway.exchange.offer.ready()
    if early:
        # Before the first token, while the request is on its way.
        asyncio.get_running_loop().call_soon(cable.cut)
    answer = await served.engine.generate(request, hear)
    _same(answer, whole)
    assert tuple(token for part in heard for token in part.ids) == answer.ids[: sum(len(one.ids) for one in heard)]
