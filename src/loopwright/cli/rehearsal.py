"""The deep check: the user's own code is imported and called once, on real tasks and a made-up answer."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loopwright.agents import load_agent
from loopwright.config import JudgerConfig, Loaded, NativeJudgerConfig, PythonAgent, TaskSetConfig
from loopwright.data import open_source
from loopwright.errors import JudgeError, LoopwrightError
from loopwright.judgers import IntegerAnswer
from loopwright.judgers.native import load_judger
from loopwright.judgers.verdict import Signature
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
    if not isinstance(config, NativeJudgerConfig):
        return await IntegerAnswer(name).judge(task, episode)
    signature = Signature(name, config.path)
    return signature.scored(await _call(signature, load_judger(config.path, base), task, episode))


async def _call(signature: Signature, function: Callable[..., Any], task: Task, episode: Episode) -> Any:
    """The boundary round the user's judger: its whole traceback is what the deep check is for."""
    try:
        value = function(task, episode)
        return await value if inspect.isawaitable(value) else value
    except (Exception, SystemExit) as error:
        own = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(type(error), error, own)).rstrip()
        raise JudgeError(
            f"judger {signature.name!r} ({signature.path}) raised on task {task.id!r}:\n{trace}",
            remedy="mend the judger: in training, a judger that raises makes its rollout a failure",
            judger=signature.name,
        ) from error


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
