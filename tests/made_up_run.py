"""A made-up run that several rooms look at: three train steps, and evaluations before and after them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.runs.run_folder import RunFolder
from loopwright.testing.chars import CharRenderer, encode_chars
from loopwright.track.jsonl import JsonlTracker
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    Group,
    GroupStatus,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
    TokenChain,
)

CONFIG = {
    "model": {"path": "smollm2"},
    "rollout": {"samples_per_task": 2, "temperature": 1.0},
    "learner": {"lr": 1e-5, "advantage": {"kind": "grpo"}},
    "trainer": {"groups_per_step": 2, "seed": 7},
}


def add(a: int, b: int) -> Task:
    return Task.ask(f"{a}+{b}", f"What is {a}+{b}?", truth=a + b)


def answered(key: RolloutKey, task: Task, answer: str, version: int = 0) -> Rollout:
    """A rollout whose tokens are characters, scored by whether the answer is right."""
    prompt, sampled = CharRenderer().render(task.messages), encode_chars(answer)
    outside, inside = len(prompt), len(sampled)
    chain = TokenChain(
        np.array([*prompt, *sampled]),
        np.array([False] * outside + [True] * inside),
        np.array([0.0] * outside + [-0.5] * inside),
        np.array([-1] * outside + [version] * inside),
    )
    episode = Episode((*task.messages, {"role": "assistant", "content": answer}), (chain,))
    return Rollout(key, task, episode, Scored(float(answer == str(task.truth))), Timing(1.0, 0.25))


def failed(key: RolloutKey, task: Task) -> Rollout:
    return Rollout(key, task, None, Failed(FailureCause.JUDGE, "KeyError", "judge.py:3 <no truth>"), Timing(1.0))


def make_run(path: Path) -> RunFolder:
    """Task 1+1 is learned, 2+2 was known, 3+3 fails; train rewards are 0, 0.5 and 1 over three steps."""
    with RunFolder.open(path, CONFIG) as folder:
        asyncio.run(_store(folder))
        _track(folder)
    return folder


async def _store(folder: RunFolder) -> None:
    async with SqliteStorage(folder.rollouts) as storage:
        for step in (1, 2, 3):
            for draw in (2 * step - 2, 2 * step - 1):
                task = add(draw, 5)
                row = await storage.draw("train", draw, task, step - 1)
                members = []
                for member in (0, 1):
                    right = step == 3 or (step == 2 and member == 1)
                    answer = str(task.truth) if right else "<b>no</b> idea"
                    members.append(answered(RolloutKey("train", draw, member), task, answer, step - 1))
                    await storage.put(row, members[-1])
                await storage.mark([("train", draw)], GroupStatus.COMPLETED)
                await storage.consume([Group("train", draw, task, tuple(members))], step)
        for step, answers in ((0, ("<script>3</script>", "4")), (3, ("2", "4"))):
            rollouts = [
                answered(RolloutKey("heldout", i, 0), add(i + 1, i + 1), answer, step)
                for i, answer in enumerate(answers)
            ]
            for mode in ("greedy", "sampled"):
                await storage.put_eval(
                    step, "heldout", mode, [*rollouts, failed(RolloutKey("heldout", 2, 0), add(3, 3))]
                )


def _track(folder: RunFolder) -> None:
    tracker = JsonlTracker(folder.path)
    for step, reward in ((0, 0.5), (3, 1.0)):
        for mode in ("greedy", "sampled"):
            with tracker.span("evaluate", step=step, task_set="heldout", mode=mode, tasks=3):
                pass
            prefix = f"eval/heldout/{mode}"
            tracker.log(step, {f"{prefix}/reward": reward, f"{prefix}/scored": 2.0, f"{prefix}/failed": 1.0})
    for step, reward in ((1, 0.0), (2, 0.5), (3, 1.0)):
        with tracker.span("rollout", step=step), tracker.span("a span of another kind", step=step):
            pass
        tracker.log(step, {"reward/mean": reward, "response/tokens": 10.0 / step, "learner/entropy": float("nan")})
