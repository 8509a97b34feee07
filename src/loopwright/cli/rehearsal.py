"""The deep check: the user's own code is imported and called once, on real tasks and a made-up answer.

Filters are only imported: what a made-up group is worth, nobody can say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from loopwright.agents import UserChoice, load_agent, load_callable
from loopwright.config import (
    CallableAgent,
    CustomMetric,
    DatasetData,
    EvalConfig,
    Loaded,
    ParquetData,
    PythonAdvantage,
    PythonAgent,
    PythonLoss,
    TaskSetConfig,
    ToolAgent,
)
from loopwright.data import open_source
from loopwright.errors import DataError, JudgeError, LoopwrightError
from loopwright.judgers import open_judgers
from loopwright.ports import TaskSource
from loopwright.produce import UserFilter
from loopwright.trainers.custom_metric import UserMetric
from loopwright.types import Episode, Rollout, RolloutKey, Scored, Task, TaskResult, Timing

SHOWN = 200
"""Characters of a task that are shown."""

READ_ROWS = 50_000
"""Rows of a table that are made tasks of: some seconds of work. The others are met only when they are drawn."""


def rehearse(loaded: Loaded) -> Iterator[str | LoopwrightError]:
    """For each task set: its first task, its agent, what its judger and metrics say, and its filter; then the learner's
    own Python.

    An error is a finding too.
    """
    for place, task_set in loaded.config.all_task_sets():
        split = "eval" if place[0] == "eval" else "train"
        yield f"{split} task set {task_set.name!r}"
        try:
            yield from _rehearse(task_set, loaded)
            yield from _measure(task_set, loaded) if split == "eval" else _filter(task_set, loaded)
        except LoopwrightError as error:
            yield error
    learner = loaded.config.learner
    if learner.sft or isinstance(learner.advantage, PythonAdvantage) or isinstance(learner.loss, PythonLoss):
        from loopwright.build import rehearse_learner

        yield "learner"
        try:
            yield from rehearse_learner(loaded)
        except LoopwrightError as error:
            yield error


def _rehearse(task_set: TaskSetConfig, loaded: Loaded) -> Iterator[str | LoopwrightError]:
    source = open_source(task_set.data, loaded.base)
    task = source[0]
    yield f"  {len(source):,} tasks; the first is {task.id}:"
    for message in task.messages:
        yield f"    {message['role']}: {_cut(message.get('content'))}"
    yield f"    truth: {_cut(task.truth)}"
    if isinstance(task_set.data, ParquetData | DatasetData):
        yield _read_through(source)
    if isinstance(task_set.agent, PythonAgent):
        load_agent(task_set.agent.path, loaded.base, task_set.agent.args)
        yield f"  agent {task_set.agent.path} can be made"
    if isinstance(task_set.agent, CallableAgent):
        load_callable(task_set.agent.path, loaded.base, task_set.agent.args, task_set.agent.max_tokens)
        yield f"  agent {task_set.agent.path} can be called"
    if isinstance(task_set.agent, ToolAgent):
        from loopwright.build.tools import offered_tools

        offered = asyncio.run(offered_tools(task_set.agent, loaded.base, task))
        yield f"  the model is offered {', '.join(offered)}"
    name = task_set.agent.judger
    answers = made_up_answers(task)
    for answer, scored in zip(answers, asyncio.run(_judge(name, loaded, task, answers)), strict=False):
        yield f"  judger {name} gives {_spelled(scored)} to the made-up answer {_cut(answer)!r}"


def _read_through(source: TaskSource) -> str | DataError:
    """Tables are read row by row when they are drawn: a bad row would stop the run, and every resume of it."""
    rows = min(len(source), READ_ROWS)
    which = f"all {rows:,} rows" if rows == len(source) else f"the first {rows:,} of {len(source):,} rows"
    bad: list[DataError] = []
    for row in range(rows):
        try:
            source[row]
        except DataError as error:
            bad.append(error)
    if not bad:
        return f"  {which} are tasks"
    first = bad[0]
    return DataError(f"{first.message} ({len(bad):,} of {which} are bad)", remedy=first.remedy, **first.facts)


def made_up_answers(task: Task) -> tuple[str, ...]:
    """The truth if there is one, because most judgers should like it, and one that has nothing to do with it."""
    return ("An answer.",) if task.truth is None else (str(task.truth), "An answer.")


async def _judge(name: str, loaded: Loaded, task: Task, answers: Sequence[str]) -> Sequence[Scored]:
    """What the judger says of the first answer, or, if it judges groups, of all of them."""
    episodes = [_episode(task, answer) for answer in answers]
    # The judger that training will use, with its deadline: what passes here passes there.
    async with open_judgers([name], loaded.config.judgers, loaded.base, loaded.secrets) as judgers:
        judger = judgers[name]
        try:
            return await judger.score(task, episodes if judger.judges_groups else episodes[:1])
        except JudgeError as error:
            raise _with_traceback(error, task) from error


def _episode(task: Task, answer: str) -> Episode:
    return Episode((*task.messages, {"role": "assistant", "content": answer}), chains=())


def _filter(task_set: TaskSetConfig, loaded: Loaded) -> Iterator[str]:
    path = task_set.filter or loaded.config.produce.filter
    if ":" in path:
        asyncio.run(_import(UserFilter(path, loaded.base, loaded.config.produce.filter_timeout_seconds)))
        yield f"  filter {path} can be called"
    train = getattr(task_set.agent, "train", "all")
    if ":" in train:
        asyncio.run(_import(UserChoice(train, loaded.base, loaded.config.produce.filter_timeout_seconds)))
        yield f"  agent.train {train} can be called"


async def _import(chosen: UserFilter | UserChoice) -> None:
    async with chosen:
        """Nothing is asked of it."""


def _measure(task_set: TaskSetConfig, loaded: Loaded) -> Iterator[str]:
    """What the user's metrics say of one task, whose only sample is right."""
    evaluation = loaded.config.eval or EvalConfig()
    task = open_source(task_set.data, loaded.base)[0]
    answer = made_up_answers(task)[0]
    key = RolloutKey(task_set.name, draw=0, member=0)
    sample = Rollout(key, task, _episode(task, answer), Scored(1.0, answer=answer), Timing(started=0.0))
    for spec in evaluation.specs():
        if isinstance(spec, CustomMetric):
            metric = UserMetric(spec, loaded.base, evaluation.metric_timeout_seconds)
            numbers = asyncio.run(metric([TaskResult(task, (sample,))]))
            spelled = ", ".join(f"{name} {value:g}" for name, value in numbers.items())
            yield f"  metric {spec.path} gives {spelled} for one made-up sample"


def _spelled(scored: Scored) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in scored.parts.items())
    return f"{scored.value:g} ({parts})" if parts else f"{scored.value:g}"


def _with_traceback(error: JudgeError, task: Task) -> JudgeError:
    """The whole traceback of a judger that raised is what the deep check is for."""
    if "trace" not in error.facts:
        return error
    return JudgeError(
        f"judger {error.facts['judger']!r} ({error.facts['path']}) raised on task {task.id!r}:\n{error.facts['trace']}",
        remedy="mend the judger: in training, a judger that raises makes its rollout a failure",
        **error.facts,
    )


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
