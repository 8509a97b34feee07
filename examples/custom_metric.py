"""A metric of your own: name it in the config as `eval: {metrics: [mean, custom_metric.py:brevity]}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopwright import TaskResult


def brevity(tasks: Sequence[TaskResult]) -> Mapping[str, float]:
    """How long the answers are, in characters: of all samples, and of the right ones among them."""
    answers = [rollout for task in tasks for rollout in task.rollouts if rollout.episode is not None]
    right = [rollout for rollout in answers if rollout.score is not None and rollout.score >= 1.0]
    lengths = {"all": answers, "right": right}
    return {
        name: sum(len(one.episode.answer) for one in chosen if one.episode) / len(chosen)
        for name, chosen in lengths.items()
        if chosen
    }
