"""The deep check: the user's own code is imported and called once, on real tasks and a made-up answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from loopwright.agents import load_agent
from loopwright.config import JudgerConfig, Loaded, PythonAgent, TaskSetConfig
from loopwright.data import open_source
from loopwright.errors import JudgeError, LoopwrightError
from loopwright.judgers import make_judger
from loopwright.types import Episode, Scored, Task

SHOWN = 200
"""Characters of a task that are shown."""


def rehearse(loaded: Loaded) -> Iterator[str | LoopwrightError]:
    """For each task set: its first task, its agent, and what its judger says. An error is a finding too."""
    for place, task_set in loaded.config.all_task_sets():
        split = "eval" if place[0] == "eval" else "train"
        yield f"{split} task set {task_set.name!r}"
        try:
            yield from _rehearse(task_set, loaded)
        except LoopwrightError as error:
            yield error


def _rehearse(task_set: TaskSetConfig, loaded: Loaded) -> Iterator[str]:
    source = open_source(task_set.data, loaded.base)
    task = source[0]
    yield f"  {len(source):,} tasks; the first is {task.id}:"
    for message in task.messages:
        yield f"    {message['role']}: {_cut(message.get('content'))}"
    yield f"    truth: {_cut(task.truth)}"
    if isinstance(task_set.agent, PythonAgent):
        load_agent(task_set.agent.path, loaded.base, task_set.agent.args)
        yield f"  agent {task_set.agent.path} can be made"
    name = task_set.agent.judger
    answer = made_up_answer(task)
    scored = asyncio.run(_judge(name, loaded.config.judgers.get(name), loaded.base, task, answer))
    yield f"  judger {name} gives {scored.value:g} to the made-up answer {_cut(answer)!r}"


def made_up_answer(task: Task) -> str:
    """The truth if there is one: most judgers should like it."""
    return "An answer." if task.truth is None else str(task.truth)


async def _judge(name: str, config: JudgerConfig | None, base: Path, task: Task, answer: str) -> Scored:
    episode = Episode((*task.messages, {"role": "assistant", "content": answer}), chains=())
    # The judger that training will use, with its deadline: what passes here passes there.
    async with make_judger(name, config, base) as judger:
        try:
            return await judger.judge(task, episode)
        except JudgeError as error:
            raise _with_traceback(error, task) from error


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
