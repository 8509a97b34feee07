"""Whatever joins, leaves, waits, shares a prompt or sees its weights change: every token is exact (T1 to T5, T8)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from plain_model import PlainModel, Sample, put

from loopwright.engines.torch import batch as batch_module
from loopwright.engines.torch import cache as cache_module
from loopwright.engines.torch.batch import Batch
from loopwright.engines.torch.sequence import Sequence
from loopwright.models.load import LoadedModel, load_model
from loopwright.testing.tiny import tiny_qwen3
from loopwright.types import FinishReason, GenerateRequest, Sampling

VERSIONS = 3
MAX_BATCH = 4
MAX_CONTEXT = 64
LONGEST_PROMPT = 40


@dataclass(frozen=True, slots=True)
class World:
    """One architecture: the model that the engine runs, and the plain one that it is measured by."""

    loaded: LoadedModel
    plain: PlainModel

    @property
    def vocabulary(self) -> int:
        return int(self.loaded.model.config.vocab_size)


@pytest.fixture(scope="module", params=["llama", "qwen3", "sliding"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if request.param == "qwen3":
        folder = tiny_qwen3(tmp_path_factory.mktemp("qwen3"), initializer_range=0.4)
    else:
        folder = request.getfixturevalue(f"tiny_{request.param}_folder")
    loaded = load_model(str(folder), cache=folder, max_context=MAX_CONTEXT)
    with pytest.MonkeyPatch.context() as patch:
        # Rows so small that short sequences outgrow several, and prompts that need more than one forward pass.
        patch.setattr(cache_module, "SMALLEST_ROW", 4)
        patch.setattr(batch_module, "FIRST_ROW", 4)
        patch.setattr(batch_module, "PREFILL_TOKENS", 48)
        yield World(loaded, PlainModel(folder, VERSIONS))


def prompts(vocabulary: int) -> st.SearchStrategy[tuple[int, ...]]:
    """A few prompts that come again and again, and any others."""
    ids = random.Random(0).choices(range(vocabulary), k=100)
    pool = [tuple(ids[start : start + length]) for start, length in enumerate((1, 4, 9, 17, 33, 40))]
    others = st.integers(1, LONGEST_PROMPT).map(lambda length: tuple(ids[50 : 50 + length]))
    return st.one_of(st.sampled_from(pool), st.sampled_from(pool[:2]), others)


def samplings(vocabulary: int) -> st.SearchStrategy[Sampling]:
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        max_new_tokens=st.sampled_from([0, 1, 2, 6, 20, 40]),
        top_k=st.sampled_from([0, 0, 0, 5]),
        stop_token_ids=st.sampled_from([(), (), tuple(range(0, vocabulary, 20))]),
        seed=st.integers(0, 2**63 - 1),
    )


@dataclass(slots=True)
class Told:
    """What the test knows of a request without asking the engine."""

    sequence: Sequence
    versions: list[int] = field(default_factory=list)
    dropped: bool = False

    @property
    def open(self) -> bool:
        return not self.dropped and self.sequence.finish is None


class Life(RuleBasedStateMachine):
    """Any order of requests, steps, aborts and swaps."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.batch = Batch(world.loaded, max_batch=MAX_BATCH)
        self.told: list[Told] = []
        self.swap_to(0)

    def swap_to(self, version: int) -> None:
        put(self.world.loaded.model, self.world.plain.versions[version % VERSIONS])
        self.batch.reload(version)

    @rule(data=st.data(), members=st.integers(1, 3))
    def submit(self, data: st.DataObject, members: int) -> None:
        prompt = data.draw(prompts(self.world.vocabulary))
        for _ in range(members):
            sampling = data.draw(samplings(self.world.vocabulary))
            self.told.append(Told(self.batch.submit(GenerateRequest(str(len(self.told)), prompt, sampling))))

    @rule(times=st.integers(1, 12), admit=st.sampled_from([True, True, True, False]))
    def step(self, times: int, admit: bool) -> None:
        for _ in range(times):
            before = {id(told): len(told.sequence.ids) for told in self.told}
            running = list(self.batch.live)
            finished = self.batch.step(admit=admit)
            assert all(sequence.finish is not None for sequence in finished)
            for told in self.told:
                grown = len(told.sequence.ids) - before[id(told)]
                assert grown in (0, 1)
                assert grown == 1 or told.sequence not in running
                told.versions += [self.batch.version] * grown

    @precondition(lambda self: any(told.open for told in self.told))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        told = data.draw(st.sampled_from([told for told in self.told if told.open]))
        self.batch.drop(told.sequence)
        told.dropped = True

    @precondition(lambda self: not self.batch.idle)
    @rule()
    def swap(self) -> None:
        self.swap_to(self.batch.version + 1)

    @invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        here = [*self.batch.live, *self.batch.waiting]
        assert len(self.batch.live) <= MAX_BATCH
        assert {id(told.sequence) for told in self.told if told.open} == {id(sequence) for sequence in here}
        assert set(self.batch._prefixes) == {sequence.request.prompt_ids for sequence in here}
        rows = {id(row) for arena in self.batch._own.arenas for row in arena.rows}
        assert rows == {id(sequence.row) for sequence in here if sequence.row is not None}
        shared = {id(row) for arena in self.batch._prompts.arenas for row in arena.rows}
        assert shared == {id(sequence.prefix.row) for sequence in here if sequence.prefix.row is not None}

    def teardown(self) -> None:
        while not self.batch.idle:
            self.step(times=1, admit=True)
        self.nothing_is_kept_for_nobody()
        for told in self.told:
            check_end(told)
        self.world.plain.check(sample_of(told) for told in self.told)


def check_end(told: Told) -> None:
    generation, request = told.sequence.generation(), told.sequence.request
    sampling, room = request.sampling, MAX_CONTEXT - len(request.prompt_ids)
    stops = [token in sampling.stop_token_ids for token in generation.ids]
    assert generation.versions == tuple(told.versions)
    assert not any(stops[:-1])
    if told.dropped:
        assert generation.finish is FinishReason.ABORT
    elif any(stops):
        assert generation.finish is FinishReason.STOP
    else:
        assert generation.finish is FinishReason.LENGTH
        assert len(generation.ids) == min(sampling.max_new_tokens, room)


def sample_of(told: Told) -> Sample:
    sequence = told.sequence
    weights = [version % VERSIONS for version in sequence.versions]
    return Sample(sequence.request, sequence.ids, sequence.logprobs, weights)


def test_every_token_is_exact_whatever_happens_around_it(world: World) -> None:
    run_state_machine_as_test(
        lambda: Life(world),
        settings=settings(
            max_examples=15,
            stateful_step_count=14,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
