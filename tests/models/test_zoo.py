"""Every architecture either trains exactly, or is refused with its reason: never silently wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zoo import CONTEXT, ZOO, build, plain_model

from loopwright.core.advantage import ADVANTAGES
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import ModelError
from loopwright.learn.learner import TorchLearner
from loopwright.learn.losses import ppo_clip
from loopwright.learn.recipe import Recipe
from loopwright.models.compute import ComputeThread
from loopwright.models.lean import LeanForward
from loopwright.models.load import LoadedModel, load_model
from loopwright.types import (
    Episode,
    GenerateRequest,
    Group,
    PauseMode,
    Rollout,
    RolloutKey,
    Sampling,
    Scored,
    Task,
    Timing,
    TokenChain,
)

TASK = Task.ask("zoo", "?")
STEPS = 3
TEMPERATURE = 0.7
MISMATCH = 1e-5

RECIPE = Recipe(
    advantage=ADVANTAGES["grpo"],
    loss=partial(ppo_clip, clip_low=0.2, clip_high=0.2),
    temperature=TEMPERATURE,
    steps=STEPS,
    constant_length=CONTEXT,
    lr=1e-3,
)

PROMPTS = {9: (3, 25, 50), 70: (10, 40), CONTEXT - 50: (7, 50, 50)}
"""Tokens of each group's prompt and of its members' answers: short ones beside those that reach the last position, and
enough of them in the last group for the learner to compute it in parts."""

OBSERVATION = tuple(range(20, 32))
"""What an agent hears between its turns."""


@pytest.mark.parametrize("name", [name for name, kind in ZOO.items() if kind.refused])
def test_what_could_be_wrong_is_refused_with_its_reason(name: str, tmp_path: Path, one_thread: None) -> None:
    kind = ZOO[name]
    folder = build(kind, tmp_path)
    with pytest.raises(ModelError) as raised:
        load_model(str(folder), cache=folder, max_context=CONTEXT)
    assert kind.refused is not None
    assert kind.refused in raised.value.message
    assert raised.value.remedy


@pytest.mark.parametrize("name", [name for name, kind in ZOO.items() if not kind.refused])
async def test_what_is_served_trains_exactly(name: str, tmp_path: Path, one_thread: None) -> None:
    """Engine, learner and transformers agree on every token of rows long and short, packed and shared in any way."""
    kind = ZOO[name]
    folder = build(kind, tmp_path)
    loaded = load_model(str(folder), cache=folder, max_context=CONTEXT)
    assert isinstance(loaded.forward, LeanForward) == kind.lean
    measure = plain_model(kind, folder)
    with ComputeThread() as compute:
        learner = await compute.run(TorchLearner, loaded, RECIPE, compute)
        async with TorchEngine(loaded, compute, cache_tokens=4096) as engine:
            for step in range(STEPS):
                groups = await sampled(engine, step)
                assert apart(measure, loaded, groups) < MISMATCH
                await engine.pause(PauseMode.DRAIN)
                report = await learner.step(groups)
                assert report.metrics["mismatch_max"] < MISMATCH
                await engine.load(step + 1)
                await engine.resume()


async def sampled(engine: TorchEngine, step: int) -> list[Group]:
    """All groups at once, or one after the other: whom a sequence shares a batch with must not matter. A long prompt
    begins like the shorter ones."""
    ids = tuple(int(token) for token in np.random.default_rng(step).integers(3, 300, CONTEXT))

    async def group(draw: int, prompt: int, answers: Sequence[int]) -> Group:
        keys = [RolloutKey("zoo", draw, member) for member in range(len(answers))]
        members = zip(keys, answers, strict=True)
        rollouts = await asyncio.gather(*(rollout(engine, key, ids[:prompt], answer) for key, answer in members))
        return Group("zoo", draw, TASK, tuple(rollouts))

    groups = [group(draw, *sizes) for draw, sizes in enumerate(PROMPTS.items())]
    return [await each for each in groups] if step == 1 else await asyncio.gather(*groups)


async def rollout(engine: TorchEngine, key: RolloutKey, prompt: tuple[int, ...], answer: int) -> Rollout:
    """Two turns, if there is room for a second one."""
    ids, mask, logprobs, versions = list(prompt), [False] * len(prompt), [0.0] * len(prompt), [-1] * len(prompt)
    for turn, heard in enumerate((OBSERVATION, ())):
        sampling = Sampling(TEMPERATURE, max_new_tokens=answer, seed=key.member)
        given = await engine.generate(GenerateRequest(f"{key}/{turn}", tuple(ids), sampling))
        ids += [*given.ids, *heard]
        mask += [True] * len(given.ids) + [False] * len(heard)
        logprobs += [*given.logprobs, *[0.0] * len(heard)]
        versions += [*given.versions, *[-1] * len(heard)]
        if len(ids) >= CONTEXT:
            break
    streams: Any = [np.array(stream[:CONTEXT]) for stream in (ids, mask, logprobs, versions)]
    chain = TokenChain(*streams)
    return Rollout(key, TASK, Episode((), (chain,)), Scored(float(key.member**2)), Timing(0.0))


@torch.no_grad()
def apart(measure: Any, loaded: LoadedModel, groups: Sequence[Group]) -> float:
    """How far the sampled logprobs are from transformers' own, each sequence alone, with the weights of today."""
    measure.load_state_dict(loaded.model.state_dict())
    largest = 0.0
    chains = [rollout.episode.chains[0] for group in groups for rollout in group.rollouts if rollout.episode]
    assert {len(chains), max(map(len, chains))} == {8, CONTEXT}
    for chain in chains:
        ids, at = torch.tensor(chain.ids).long(), torch.tensor(chain.mask.nonzero()[0])
        logits = measure(input_ids=ids[None], use_cache=False).logits[0].double()
        table = torch.log_softmax(logits / TEMPERATURE, dim=-1)
        largest = max(largest, float((table[at - 1, ids[at]] - torch.tensor(chain.logprobs)[at]).abs().max()))
    return largest
