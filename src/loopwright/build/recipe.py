"""The learner's recipe from its section of the config."""

from __future__ import annotations

from functools import partial

from loopwright.config import RunConfig
from loopwright.core.advantage import ADVANTAGES
from loopwright.learn.learner import Recipe
from loopwright.learn.losses import ppo_clip


def make_recipe(config: RunConfig) -> Recipe:
    learner, loss = config.learner, config.learner.loss
    return Recipe(
        advantage=ADVANTAGES[learner.advantage],
        loss=partial(ppo_clip, clip_low=loss.clip_low, clip_high=loss.clip_high),
        temperature=config.rollout.temperature,
        steps=config.trainer.steps,
        lr=learner.lr,
        betas=learner.betas,
        eps=learner.eps,
        weight_decay=learner.weight_decay,
        schedule=learner.schedule,
        warmup_steps=learner.warmup_steps,
        max_grad_norm=learner.max_grad_norm,
        aggregate=loss.aggregate,
        importance_cap=learner.importance_cap,
        mini_batches=learner.mini_batches,
        micro_batch_tokens=learner.micro_batch_tokens,
    )
