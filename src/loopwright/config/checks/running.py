"""The run itself: its length, and what is kept of it."""

from __future__ import annotations

from loopwright.config.checks.idle import Idle

IDLE = (
    Idle(
        "trainer.checkpoint_every",
        lambda config, trainer: trainer.checkpoint_every > trainer.steps,
        "there are fewer trainer.steps, and the last one is always saved",
    ),
    Idle(
        "trainer.keep_checkpoints",
        lambda config, trainer: trainer.keep_checkpoints > -(-trainer.steps // trainer.checkpoint_every),
        "the run writes fewer checkpoints",
    ),
    Idle(
        "learner.schedule",
        lambda config, learner: config.trainer.steps - learner.warmup_steps <= 1,
        "after learner.warmup_steps there is no time left for the rate to fall",
    ),
)
