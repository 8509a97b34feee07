"""Evaluating weights without training them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loopwright.build.remote import RemoteEngine
from loopwright.build.session import open_session, with_weights
from loopwright.config import Loaded
from loopwright.core.together import or_left_behind
from loopwright.errors import ConfigError
from loopwright.produce import TaskSetRuntime
from loopwright.runs.kept_weights import Weights
from loopwright.track.console import Console
from loopwright.track.redacting import redact_error
from loopwright.trainers.evaluator import EvalReport, Evaluator


async def evaluate_weights(
    loaded: Loaded,
    weights: Weights,
    out: Path,
    *,
    cache: Path,
    task_set: str | None = None,
    fresh: bool = False,
    console: Console | None = None,
    remote: RemoteEngine | None = None,
) -> EvalReport:
    """Run the config's evaluation on `weights`, and keep its trajectories and numbers in the folder `out`.

    With `task_set`, only the set of that name. A second evaluation of the same weights replaces the first. With
    `remote`, `weights` is only a name for the weights of that engine.
    """
    require_eval_sets(loaded, task_set)
    # Nothing is trained, so the training tasks need not be there.
    config = loaded.config.model_copy(update={"task_sets": ()})
    session_of = with_weights(replace(loaded, config=config), weights, out)
    async with open_session(
        session_of, cache=cache, version=weights.step, fresh=fresh, console=console, remote=remote
    ) as session:
        evaluator = Evaluator(
            _chosen(session.sampling.eval_sets, task_set),
            session.sampling.eval_plans,
            session.runner,
            session.storage,
            session.tracker,
            on_rollout=session.on_rollout,
        )
        # An agent may ignore its cancellation, but a user who presses Ctrl-C must not wait for it.
        report = await or_left_behind(evaluator.evaluate(weights.step), "the evaluation")
        session.tracker.log(weights.step, report.metrics)
        for error in report.errors:
            redact_error(error, session.redact)
    return report


def require_eval_sets(loaded: Loaded, task_set: str | None) -> None:
    """Raise ConfigError if the config has no evaluation set, or none named `task_set`."""
    known = [one.name for one in (loaded.config.eval.task_sets if loaded.config.eval else ())]
    if not known:
        raise ConfigError("the config has nothing to evaluate on", remedy="add eval.data and eval.agent to it")
    if task_set is not None and task_set not in known:
        raise ConfigError(f"there is no evaluation set {task_set!r}", remedy=f"choose one of {', '.join(known)}")


def _chosen(task_sets: Sequence[TaskSetRuntime], name: str | None) -> list[TaskSetRuntime]:
    return [task_set for task_set in task_sets if name in (None, task_set.name)]
