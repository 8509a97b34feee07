"""`loopwright show`: a run's trajectories. It works while the run goes on, and loads a tokenizer only to show
tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from loopwright.cli.runs import RunPath, existing_run
from loopwright.types import GroupStatus, RolloutKey


def show(
    run: RunPath,
    step: Annotated[int | None, typer.Option("--step", help="The train step; the last one if not given.")] = None,
    evaluation: Annotated[bool, typer.Option("--eval", help="Show evaluations instead of training.")] = False,
    status: Annotated[
        GroupStatus | None,
        typer.Option("--status", help="Groups in this status instead of trained ones, newest first."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only this task, at any step unless --step.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="One rollout: set/draw/member/attempt.")] = None,
    best: Annotated[bool | None, typer.Option("--best/--worst", help="By reward, not in order.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to show.")] = 5,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show every token, the sampled ones marked.")] = False,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="With the logprob of each sampled token.")] = False,
) -> None:
    """Print trajectories: task, transcript and reward."""
    if key and (task is not None or (step is not None and not evaluation)):
        raise typer.BadParameter("it names one rollout already; leave out --step and --task", param_hint="--key")
    if status and (key or evaluation or step is not None):
        raise typer.BadParameter(
            "it names groups of any step; leave out --step, --eval and --key", param_hint="--status"
        )
    folder = existing_run(run)
    from rich.console import Console

    from loopwright.cli.find_rollouts import Wanted, find
    from loopwright.cli.trajectory import print_rollout
    from loopwright.runs.stored_run import StoredRun

    wanted = Wanted(step, evaluation, task, parsed_key(key) if key else None, best, limit, status)
    renderer = None
    if tokens or logprobs:
        from loopwright.build import run_renderer

        renderer = run_renderer(folder)
    out = Console(highlight=False)
    for found in find(StoredRun(folder.rollouts), wanted):
        print_rollout(out, found, renderer, logprobs=logprobs)


def parsed_key(text: str) -> RolloutKey:
    """Parse a key such as `train/000012/03/0`. The name of a task set may contain slashes."""
    task_set, *numbers = text.rsplit("/", 3)
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise typer.BadParameter(f"{text!r} is no key; it looks like train/000012/03/0", param_hint="--key")
    draw, member, attempt = map(int, numbers)
    return RolloutKey(task_set, draw, member, attempt)
