"""The deep check: makes the user's parts as a run makes them, and calls each once, on real tasks and a made-up answer.

Filters are only imported, because a made-up group would tell nothing. No model is loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from loopwright.agents import try_agent
from loopwright.build.choices import make_chain_choice, make_filter
from loopwright.build.eval_plans import user_metric
from loopwright.build.programs import program_host
from loopwright.config import EvalConfig, Loaded, TaskSetConfig
from loopwright.config.base import needs_of
from loopwright.config.needs import Outside
from loopwright.data import open_source
from loopwright.errors import DataError, JudgeError, LoopwrightError
from loopwright.judgers import open_judgers
from loopwright.ports import TaskSource
from loopwright.types import Episode, Rollout, RolloutKey, Scored, Task, TaskResult, Timing

SHOWN = 200
"""Characters of a task that are shown."""

READ_ROWS = 50_000
"""How many rows of a table are checked: some seconds of work. The others are read only when they are drawn."""


async def rehearse(loaded: Loaded) -> AsyncIterator[str | LoopwrightError]:
    """For each task set: its first task, its agent, what its judger and metrics say, and its filter; then the learner's
    own Python. An error is a finding too."""
    for place, task_set in loaded.config.all_task_sets():
        split = "eval" if place[0] == "eval" else "train"
        yield f"{split} task set {task_set.name!r}"
        try:
            async for finding in _task_set(task_set, loaded):
                yield finding
            async for finding in _metrics(task_set, loaded) if split == "eval" else _choices(task_set, loaded):
                yield finding
        except LoopwrightError as error:
            yield error
    if any(need.what in (Outside.CODE, Outside.FILE) for need in needs_of(loaded.config.learner)):
        from loopwright.build.recipe import rehearse_learner  # it loads torch

        yield "learner"
        try:
            for line in rehearse_learner(loaded):
                yield line
        except LoopwrightError as error:
            yield error


async def _task_set(task_set: TaskSetConfig, loaded: Loaded) -> AsyncIterator[str | LoopwrightError]:
    source = open_source(task_set.data, loaded.base)
    task = source[0]
    yield f"  {len(source):,} tasks; the first is {task.id}:"
    for message in task.messages:
        yield f"    {message['role']}: {_cut(message.get('content'))}"
    yield f"    truth: {_cut(task.truth)}"
    if task_set.data.reads_late:
        yield _read_through(source)
    if (told := await try_agent(task_set.agent, program_host(loaded), task)) is not None:
        yield f"  {told}"
    if task_set.agent.brings_reward:
        return
    name, answers = task_set.agent.judger, made_up_answers(task)
    for answer, scored in zip(answers, await _judge(name, loaded, task, answers), strict=False):
        yield f"  judger {name} gives {_spelled(scored)} to the made-up answer {_cut(answer)!r}"


def _read_through(source: TaskSource) -> str | DataError:
    """Check the rows of a table. A run reads them one by one when it draws them: a bad row would stop it, and every
    resume of it."""
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
    """Made-up answers: the truth, if there is one, because most judgers accept it, and an unrelated one."""
    return ("An answer.",) if task.truth is None else (str(task.truth), "An answer.")


async def _judge(name: str, loaded: Loaded, task: Task, answers: Sequence[str]) -> Sequence[Scored]:
    """What the judger says of the first answer, or, if it judges groups, of all of them."""
    episodes = [_episode(task, answer) for answer in answers]
    # The judger as training uses it, with its deadline.
    async with open_judgers([name], loaded.config.judgers, loaded.base, loaded.secrets) as judgers:
        judger = judgers[name]
        try:
            return await judger.score(task, episodes if judger.judges_groups else episodes[:1])
        except JudgeError as error:
            raise _with_traceback(error, task) from error


def _episode(task: Task, answer: str) -> Episode:
    return Episode((*task.messages, {"role": "assistant", "content": answer}), chains=())


async def _choices(task_set: TaskSetConfig, loaded: Loaded) -> AsyncIterator[str]:
    """Import the user's functions that choose groups and chains. They are not called."""
    chosen: tuple[tuple[str, str, object], ...] = (
        ("filter", task_set.filter or loaded.config.produce.filter, make_filter(loaded, task_set)),
        ("agent.train", task_set.agent.chain_choice, make_chain_choice(loaded, task_set)),
    )
    for setting, name, part in chosen:
        if isinstance(part, AbstractAsyncContextManager):
            async with part:
                """Entering it imports the function."""
            yield f"  {setting} {name} can be called"


async def _metrics(task_set: TaskSetConfig, loaded: Loaded) -> AsyncIterator[str]:
    """What the user's metrics give for one task with one right sample."""
    evaluation = loaded.config.eval or EvalConfig()
    task = open_source(task_set.data, loaded.base)[0]
    answer = made_up_answers(task)[0]
    key = RolloutKey(task_set.name, draw=0, member=0)
    sample = Rollout(key, task, _episode(task, answer), Scored(1.0, answer=answer), Timing(started=0.0))
    for spec in evaluation.own_metrics():
        numbers = await user_metric(spec, evaluation, loaded.base)([TaskResult(task, (sample,))])
        spelled = ", ".join(f"{name} {value:g}" for name, value in numbers.items())
        yield f"  metric {spec.path} gives {spelled} for one made-up sample"


def _spelled(scored: Scored) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in scored.parts.items())
    return f"{scored.value:g} ({parts})" if parts else f"{scored.value:g}"


def _with_traceback(error: JudgeError, task: Task) -> JudgeError:
    """Show the whole traceback of a judger that raised: the deep check is for that."""
    if "trace" not in error.facts:
        return error
    return JudgeError(
        f"judger {error.facts['judger']!r} ({error.facts['path']}) raised on task {task.id!r}:\n{error.facts['trace']}",
        remedy="fix the judger: in training, a judger that raises makes its rollout a failure",
        **error.facts,
    )


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
