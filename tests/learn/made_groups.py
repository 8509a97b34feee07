"""Groups without an engine: random tokens and logprobs in the shapes that agents produce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from loopwright.core.advantage import ADVANTAGES
from loopwright.learn.execute import Micro
from loopwright.learn.learner import TorchLearner
from loopwright.learn.losses import ppo_clip
from loopwright.learn.plan import MiniBatch, plan_step
from loopwright.learn.recipe import Recipe
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel, load_model
from loopwright.types import Episode, Group, Rollout, RolloutKey, Scored, Task, Timing, TokenChain

CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.3}
CAP = 2.0
LENGTH = 7
VOCABULARY = 300
TASK = Task.ask("adding", "What is 12+7?")


@dataclass
class Maker:
    """Makes values from one seed. Logprobs lie around those of an untrained model, on both sides of the cap."""

    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def ids(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.integers(0, VOCABULARY, count)]

    def chain(self, prompt: Sequence[int], sizes: Sequence[int]) -> TokenChain:
        """A chain behind `prompt`: `sizes` alternate between sampled tokens and the context that follows them."""
        mask = np.array([False] * len(prompt) + [turn % 2 == 0 for turn, size in enumerate(sizes) for _ in range(size)])
        logprobs = self.rng.uniform(-7.5, -4.5, len(mask))
        ids = np.array([*prompt, *self.ids(sum(sizes))])
        return TokenChain(ids, mask, np.where(mask, logprobs, 0.0), np.where(mask, 0, -1))


def group_of(members: Sequence[tuple[float, Sequence[TokenChain]]], draw: int = 0) -> Group:
    """A group of (reward, chains) members."""
    rollouts = tuple(
        Rollout(RolloutKey("adding", draw, number), TASK, Episode((), tuple(chains)), Scored(reward), Timing(0.0))
        for number, (reward, chains) in enumerate(members)
    )
    return Group("adding", draw, TASK, rollouts)


def simple_groups(seed: int = 0, *, count: int = 2, rewards: Sequence[float] = (1.0, 0.0, 0.5)) -> list[Group]:
    """Single-turn groups: a shared prompt of 9 tokens, and answers of 3 to 5."""
    make = Maker(seed)
    groups = []
    for draw in range(count):
        prompt = make.ids(9)
        groups.append(group_of([(reward, [make.chain(prompt, [3 + i % 3])]) for i, reward in enumerate(rewards)], draw))
    return groups


@st.composite
def random_groups(draw: st.DrawFn) -> list[Group]:
    """Several groups, in each: members of different lengths, several turns, several chains, some without advantage."""
    make = Maker(draw(st.integers(0, 2**32 - 1)))
    turn = st.integers(1, 5)
    groups = []
    for number in range(draw(st.integers(1, 3))):
        prompt = make.ids(draw(st.sampled_from([1, 3, 15, 16, 17, 30])))
        members = []
        for _ in range(draw(st.sampled_from([3, 4, 5, 2, 1]))):
            chains = [make.chain(prompt, draw(st.lists(turn, min_size=1, max_size=4)))]
            if draw(st.booleans()):
                # A sub-agent, or a history that goes on from half of the prompt.
                other = make.ids(4) if draw(st.booleans()) else prompt[: len(prompt) // 2 + 1] + make.ids(3)
                chains.append(make.chain(other, draw(st.lists(turn, min_size=1, max_size=3))))
            members.append((draw(st.sampled_from([0.0, 0.5, 1.0])), chains))
        groups.append(group_of(members, number))
    return groups


def recipe(**overrides: Any) -> Recipe:
    options: dict[str, Any] = {
        "advantage": ADVANTAGES["grpo"],
        "loss": partial(ppo_clip, **CLIP),
        "temperature": 1.0,
        "steps": 10,
        "constant_length": LENGTH,
    }
    return Recipe(**(options | overrides))


def load_tiny(folder: Path) -> LoadedModel:
    return load_model(str(folder), cache=folder)


def learner_of(loaded: LoadedModel, **overrides: Any) -> TorchLearner:
    """A learner whose `_step` tests call in their own thread; its compute thread is never started."""
    return TorchLearner(loaded, recipe(**overrides), ComputeThread())


def laid_out(learner: TorchLearner, groups: Sequence[Group]) -> list[tuple[MiniBatch, list[Micro]]]:
    """The mini-batches of the learner's next step, with their micro-batches."""
    plan = plan_step(learner._recipe, groups, learner.version + 1)
    return [(batch, learner._executor.lay_out(batch)) for batch in plan.mini_batches]


def micros_of(learner: TorchLearner, groups: Sequence[Group]) -> list[list[Micro]]:
    return [micros for _, micros in laid_out(learner, groups)]


def weights_of(model: Any) -> dict[str, Any]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
