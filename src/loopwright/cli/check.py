"""`loopwright check`: finds every mistake that can be found without loading a model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from loopwright.cli.arguments import ConfigFile, Overrides
from loopwright.cli.memory import show_memory
from loopwright.cli.show_errors import MEND_THE_INPUT, show_error, show_warning
from loopwright.config import Loaded, RunConfig, TaskSetConfig, TorchEngineConfig, load
from loopwright.config.placement import PlacedSection
from loopwright.config.transport import (
    IN_THIS_PROCESS,
    ON_THIS_MACHINE,
    ON_THIS_NODE,
    SENT_ELSEWHERE,
    STORED_ELSEWHERE,
    transport_to,
)
from loopwright.errors import ConfigError, DataError, LoopwrightError


def check(
    file: ConfigFile,
    overrides: Overrides = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also import your Python, load tasks and call each task set's judger once.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also plan the memory of every process, and say whether it fits.")
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(min=2, help="How long conversations get, for --memory. Default: as long as the context allows."),
    ] = None,
) -> None:
    """Find every problem of a config before anything starts."""
    loaded = load(file, overrides or [], os.environ, files=True)
    for warning in loaded.warnings:
        show_warning(warning)
    errors = asyncio.run(_deep_errors(loaded)) if deep else list(_malformed_files(loaded))
    errors += _no_room(loaded.config)
    for error in errors:
        show_error(error)
    if errors:
        raise typer.Exit(MEND_THE_INPUT)
    typer.secho(f"ok: {file}", fg=typer.colors.GREEN)
    for line in _summary(loaded.config):
        typer.echo(f"  {line}")
    if memory and not show_memory(loaded, tokens):
        raise typer.Exit(MEND_THE_INPUT)


def _malformed_files(loaded: Loaded) -> Iterator[LoopwrightError]:
    """Check every line of JSONL files and the first row of Parquet files, without running the user's code."""
    from loopwright.data import open_source
    from loopwright.data.examples import read_examples

    data = [task_set.data for _, task_set in loaded.config.all_task_sets()]
    for rows in dict.fromkeys(each for each in data if each.opens_lightly):
        try:
            open_source(rows, loaded.base)
        except DataError as error:
            yield error
    if sft := loaded.config.learner.sft:
        try:
            read_examples(loaded.base / sft.path)
        except DataError as error:
            yield error


def _no_room(config: RunConfig) -> Iterator[LoopwrightError]:
    """Whether a cluster that the run would start here has room for it."""
    from loopwright.build.cluster import local_plan

    if config.cluster.address is None:
        try:
            local_plan(config)
        except ConfigError as error:
            yield error


async def _deep_errors(loaded: Loaded) -> list[LoopwrightError]:
    """Print good results at once, and keep errors for the end."""
    from loopwright.build import rehearse
    from loopwright.track.redacting import redact_error, redactor_of

    redact, errors = redactor_of(loaded), []
    async for finding in rehearse(loaded):
        if isinstance(finding, LoopwrightError):
            redact_error(finding, redact)
            errors.append(finding)
        else:
            typer.echo(redact(finding))
    return errors


def _summary(config: RunConfig) -> Iterator[str]:
    trainer, samples = config.trainer, config.rollout.samples_per_task
    yield f"model  {config.model.path}, {config.model.dtype}"
    for task_set in config.task_sets:
        yield f"train  {_described(task_set)}"
    for task_set in config.eval.task_sets if config.eval else ():
        yield f"eval   {_described(task_set)}"
    yield f"engine {config.rollout.engine.kind}: {_ways(config)}"
    if config.learner.ranks > 1:
        where = "on actors of Ray" if config.learner.is_on_actors else "child processes"
        yield f"learner {config.learner.ranks} ranks, {where}"
    rollouts = trainer.steps * trainer.groups_per_step * samples
    yield f"run    {trainer.steps} steps x {trainer.groups_per_step} groups x {samples} samples = {rollouts:,} rollouts"
    yield f"in     {trainer.run_dir}"


def _ways(config: RunConfig) -> str:
    """How new weights reach the engines."""
    engine, trainer = config.rollout.engine, config.trainer.kind
    count = engine.processes(trainer)
    if count == 0:
        return f"weights {IN_THIS_PROCESS}"
    if engine.addresses:
        return "; ".join(f"{url} gets weights by {transport_to(url)}" for url in engine.addresses)
    if isinstance(engine, PlacedSection) and engine.num_actors:
        elsewhere = STORED_ELSEWHERE if isinstance(engine, TorchEngineConfig) else SENT_ELSEWHERE
        return f"{count} on actors, weights by {ON_THIS_NODE} or by {elsewhere}"
    return f"{count} started here, weights by {ON_THIS_MACHINE}"


def _described(task_set: TaskSetConfig) -> str:
    data, agent = task_set.data, task_set.agent
    return f"{task_set.name}: {data.label}, {agent.kind} agent, {agent.own_reward or f'judged by {agent.judger}'}"
