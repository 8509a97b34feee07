"""Whatever joins, leaves, waits, shares a prompt, goes on from an answer or sees its weights change: every token is
exact (T1 to T5, T8), also where the keys of earlier requests are used again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_model import PlainModel, Sample, put

from loopwright.engines.torch import cache as cache_module
from loopwright.engines.torch import decode as decode_module
from loopwright.engines.torch import forward as forward_module
from loopwright.engines.torch import prompts as prompts_module
from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.sequence import Sequence
from loopwright.models.forward import ModuleForward
from loopwright.models.lean import LeanForward
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.native.cells import STRIDE
from loopwright.testing.tiny import SHAPE, tiny_qwen2, tiny_qwen3
from loopwright.types import FinishReason, GenerateRequest, Sampling

VERSIONS = 3
VOCABULARY = 300
MAX_BATCH = 4
MAX_CONTEXT = 64
LONGEST_PROMPT = 40
NUMBERS_PER_KEY = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]


@dataclass(frozen=True, slots=True)
class World:
    """One architecture: the model that the engine runs, and the plain one that it is measured by."""

    loaded: LoadedModel
    plain: PlainModel


MADE_HERE = {"qwen2": tiny_qwen2, "qwen3": tiny_qwen3}


BY_TORCH, BY_MODULES = " by torch", " by its modules"
KINDS = ("llama", "qwen2", "qwen3", "sliding")


@pytest.fixture(scope="module", params=[*KINDS, *(kind + BY_TORCH for kind in KINDS), "sliding" + BY_MODULES])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    kind = request.param.removesuffix(BY_TORCH).removesuffix(BY_MODULES)
    if kind in MADE_HERE:
        folder = MADE_HERE[kind](tmp_path_factory.mktemp(kind), initializer_range=0.4)
    else:
        folder = request.getfixturevalue(f"tiny_{kind}_folder")
    with pytest.MonkeyPatch.context() as patch:
        loaded = load_model(str(folder), cache=folder, max_context=MAX_CONTEXT)
        assert isinstance(loaded.forward, LeanForward)
        if request.param.endswith(BY_TORCH):
            loaded = replace(loaded, forward=LeanForward(loaded.forward.model))
        elif request.param.endswith(BY_MODULES):
            loaded = replace(loaded, forward=ModuleForward(loaded.model))
        assert (loaded.forward.native() is not None) == (request.param == kind)
        # Rows so small that short sequences outgrow several, and prompts that need more than one forward pass.
        patch.setattr(cache_module, "SMALLEST_ROW", STRIDE if request.param == kind else 4)
        patch.setattr(forward_module, "FIRST_ROW", 4)
        # Shorter prompts are copied into the rows of their sequences, longer ones shared, often in one batch.
        patch.setattr(forward_module, "WORTH_SHARING", 10 * NUMBERS_PER_KEY)
        patch.setattr(forward_module, "WORTH_KEEPING_APART", 20 * NUMBERS_PER_KEY)
        patch.setattr(decode_module, "STRIDE", 3)
        # Both ways to write keys.
        patch.setattr(decode_module, "MANY", 2 * NUMBERS_PER_KEY)
        patch.setattr(prompts_module, "PASS_TOKENS", 48)
        # Every kept token is used, and every beginning that several prompts share is computed once.
        patch.setattr(prompts_module, "WORTH_COPYING", 1)
        patch.setattr(prompts_module, "WORTH_A_PASS", 1)
        yield World(loaded, PlainModel(folder, VERSIONS))


# What can happen, as plain values: hypothesis makes and shrinks lists of them.


@dataclass(frozen=True, slots=True)
class Submit:
    """A group: several requests with one prompt."""

    prompt: tuple[int, ...]
    samplings: tuple[Sampling, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's next turn: all of an earlier request's tokens but the last few, and new ones behind them."""

    place: float
    without: int
    more: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Step:
    times: int
    admit: bool


@dataclass(frozen=True, slots=True)
class Abort:
    """Leave early: the request at this place among those that are open."""

    place: float


@dataclass(frozen=True, slots=True)
class Swap:
    """Other weights, in place, while requests live."""


Event = Submit | Reply | Step | Abort | Swap

_ids = random.Random(0).choices(range(VOCABULARY), k=100)
_pool = [tuple(_ids[start : start + length]) for start, length in enumerate((1, 4, 9, 17, 33, 40))]
prompts = st.sampled_from(_pool) | st.integers(1, LONGEST_PROMPT).map(lambda length: tuple(_ids[50 : 50 + length]))
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    max_new_tokens=st.sampled_from([0, 1, 2, 6, 20, 40]),
    top_k=st.sampled_from([0, 0, 0, 5]),
    stop_token_ids=st.sampled_from([(), (), tuple(range(0, VOCABULARY, 20))]),
    seed=st.integers(0, 2**63 - 1),
)
submits = st.builds(Submit, prompts, st.lists(samplings, min_size=1, max_size=3).map(tuple))
places = st.floats(0, 1, exclude_max=True)
replies = st.builds(
    Reply,
    places,
    st.sampled_from([0, 0, 0, 1, 3, 9]),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6).map(tuple),
    samplings,
)
steps = st.builds(Step, st.integers(1, 9), st.sampled_from([True, True, True, False]))
aborts = st.builds(Abort, places)
lives = st.lists(st.one_of(submits, replies, steps, steps, aborts, st.just(Swap())), min_size=10, max_size=30)
budgets = st.sampled_from([0, 40, 100_000])


@dataclass(slots=True)
class Told:
    """What the test knows of a request without asking the engine."""

    sequence: Sequence
    versions: list[int] = field(default_factory=list)
    dropped: bool = False

    @property
    def open(self) -> bool:
        return not self.dropped and self.sequence.finish is None


class Life:
    """A batch, and what must be true of it at every moment."""

    def __init__(self, world: World, cache_tokens: int) -> None:
        self.world = world
        self.batch = EngineBatch(world.loaded, max_batch=MAX_BATCH, cache_tokens=cache_tokens)
        self.told: list[Told] = []
        self.swap_to(0)

    def swap_to(self, version: int) -> None:
        put(self.world.loaded.model, self.world.plain.versions[version % VERSIONS])
        self.batch.reload(version)

    def submit(self, prompt: tuple[int, ...], sampling: Sampling) -> None:
        request = GenerateRequest(str(len(self.told)), prompt, sampling)
        self.told.append(Told(self.batch.submit(request)))

    def happen(self, event: Event) -> None:
        match event:
            case Submit(prompt, samplings):
                for sampling in samplings:
                    self.submit(prompt, sampling)
            case Reply(place, without, more, sampling):
                if self.told:
                    earlier = self.told[int(place * len(self.told))].sequence
                    stream = (*earlier.request.prompt_ids, *earlier.ids)
                    self.submit((*stream[: len(stream) - without], *more), sampling)
            case Step(times, admit):
                for _ in range(times):
                    self.step(admit)
            case Abort(place):
                if open := [told for told in self.told if told.open]:
                    told = open[int(place * len(open))]
                    self.batch.drop(told.sequence)
                    told.dropped = True
            case Swap():
                self.swap_to(self.batch.version + 1)
        self.check_nothing_is_kept_for_nobody()

    def step(self, admit: bool) -> None:
        before = [len(told.sequence.ids) for told in self.told]
        running = list(self.batch.live)
        finished = self.batch.step(admit=admit)
        assert all(sequence.finish is not None for sequence in finished)
        for told, length in zip(self.told, before, strict=True):
            grown = len(told.sequence.ids) - length
            assert grown == 1 if told.sequence in running else grown in (0, int(admit))
            told.versions += [self.batch.version] * grown

    def finish(self) -> None:
        while not self.batch.idle:
            self.happen(Step(1, admit=True))
        for told in self.told:
            check_end(told)
        self.world.plain.check(sample_of(told) for told in self.told)

    def check_nothing_is_kept_for_nobody(self) -> None:
        here = [*self.batch.live, *self.batch.waiting]
        assert len(self.batch.live) <= MAX_BATCH
        assert {id(told.sequence) for told in self.told if told.open} == {id(sequence) for sequence in here}
        # The last answers hold what they have until somebody comes.
        assert not (here and self.batch._ended)
        here = here or self.batch._ended
        assert set(self.batch._prefixes) == {sequence.request.prompt_ids for sequence in here}
        forward = self.batch._forward
        rows = {id(row) for arena in (*forward._whole.arenas, *forward._own.arenas) for row in arena.rows}
        assert rows == {id(sequence.row) for sequence in here if sequence.row is not None}
        kept = forward._prompts._kept
        assert kept.tokens <= kept.budget
        shared = {id(row) for arena in forward._prompts.rows.arenas for row in arena.rows}
        assert shared == {id(sequence.prefix.row) for sequence in here if sequence.prefix.row is not None}


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


def lives_of(count: int) -> settings:
    return settings(
        max_examples=count,
        database=None,
        suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow, HealthCheck.large_base_example],
    )


def live(world: World, events: list[Event], cache_tokens: int) -> None:
    life = Life(world, cache_tokens)
    for event in events:
        life.happen(event)
    life.finish()


@given(events=lives, cache_tokens=budgets)
@lives_of(5)
def test_every_token_is_exact_whatever_happens_around_it(world: World, events: list[Event], cache_tokens: int) -> None:
    live(world, events, cache_tokens)


@pytest.mark.real
@given(events=lives, cache_tokens=budgets)
@lives_of(50)
def test_every_token_is_exact_in_many_lives(world: World, events: list[Event], cache_tokens: int) -> None:
    live(world, events, cache_tokens)
