"""A made-up run in which several things go wrong, each in a step of its own. What the page says of it can be checked.

The judger of the task set `facts` fails from step JUDGE_FAILS on, an engine dies in step ENGINE_DIES, answers become
longer from step DRIFTS on, and most groups are filtered from step NO_SIGNAL on. One rollout has chains that branch, and
all that a model or a tool wrote in another one is HOSTILE.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from made_up_run import CONFIG

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.runs.run_folder import RunFolder
from loopwright.testing.chars import encode_chars
from loopwright.types import (
    ChainStart,
    Episode,
    Failed,
    FailureCause,
    Group,
    GroupStatus,
    ProgramOutput,
    Rollout,
    RolloutKey,
    Scored,
    StopReason,
    Task,
    Timing,
    TokenChain,
    TrainedChain,
    TrainedRollout,
)

STEPS = 24
STEP_SECONDS = 60.0
JUDGE_FAILS, DRIFTS, ENGINE_DIES, NO_SIGNAL = 12, 15, 17, 18
MEMBERS = 4
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script></pre>&lt;b&gt; {{x}} ${x} \u202ejs'
HOSTILE_STEP = 3
BRANCHED = RolloutKey("sums", 2, 1)
"""A rollout with three chains."""
TASK_SETS = ("sums", "facts")
SETTINGS: Mapping[str, Any] = {
    **CONFIG,
    "model": {"path": HOSTILE},
    "rollout": {"samples_per_task": MEMBERS, "temperature": 1.0},
    "trainer": {"groups_per_step": 2, "seed": 7, "steps": STEPS},
    "task_sets": [{"name": name} for name in TASK_SETS],
}


def make_planted_run(path: Path) -> RunFolder:
    with RunFolder.open(path, SETTINGS) as folder:
        asyncio.run(_store(folder))
        _write_lines(folder)
    return folder


def tokens_at(step: int) -> int:
    return 40 if step < DRIFTS else 40 + 15 * (step - DRIFTS + 1)


async def _store(folder: RunFolder) -> None:
    async with SqliteStorage(folder.rollouts) as storage:
        draws = dict.fromkeys(TASK_SETS, 0)
        for step in range(1, STEPS + 1):
            trained = []
            for name in TASK_SETS:
                groups = list(_groups(name, step, draws[name]))
                draws[name] += len(groups)
                for group, status in groups:
                    row = await storage.draw(name, group.draw, group.task, step - 1)
                    for rollout in group.rollouts:
                        await storage.put(row, rollout)
                    await storage.mark([(name, group.draw)], status)
                trained += [group for group, status in groups if status is GroupStatus.COMPLETED]
            await storage.consume(trained, step, [_computed(one) for group in trained for one in group.rollouts])


def _groups(name: str, step: int, draw: int) -> Iterator[tuple[Group, GroupStatus]]:
    if name == "facts" and step >= JUDGE_FAILS:
        yield (
            _group(name, step, draw, [_broken(name, step, draw, member) for member in range(MEMBERS)]),
            GroupStatus.FAILED,
        )
        return
    if step >= NO_SIGNAL:
        for more in range(3):
            yield (
                _group(name, step, draw + more, [_rollout(name, step, draw + more, m, 0.0) for m in range(MEMBERS)]),
                GroupStatus.FILTERED,
            )
        draw += 3
    rewards = [float((member + step) % 3 > 0) for member in range(MEMBERS)]
    yield (
        _group(name, step, draw, [_rollout(name, step, draw, m, reward) for m, reward in enumerate(rewards)]),
        GroupStatus.COMPLETED,
    )


def _group(name: str, step: int, draw: int, rollouts: list[Rollout]) -> Group:
    return Group(name, draw, rollouts[0].task, tuple(rollouts))


def _task(name: str, step: int, draw: int) -> Task:
    asked = HOSTILE if step == HOSTILE_STEP else f"Question {draw} of {name}: what is {draw} + 5?"
    return Task.ask(f"{name} {draw} {HOSTILE if step == HOSTILE_STEP else ''}".strip(), asked, truth=draw + 5)


def _rollout(name: str, step: int, draw: int, member: int, reward: float) -> Rollout:
    key, task = RolloutKey(name, draw, member), _task(name, step, draw)
    said = HOSTILE if step == HOSTILE_STEP else f"I think it is {draw + 5}. "
    answer = (said * 40)[: tokens_at(step)] if step != HOSTILE_STEP else HOSTILE
    call = {"id": "1", "name": HOSTILE if step == HOSTILE_STEP else "add", "arguments": json.dumps({"a": said})}
    messages = (
        *task.messages,
        {"role": "assistant", "content": "", "reasoning": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "name": "add", "content": said},
        {"role": "assistant", "content": answer},
    )
    chains = tuple(_branched(version=step - 1)) if key == BRANCHED else (_chain("ask: " + said, answer, step - 1),)
    stop = StopReason.BUDGET if step > NO_SIGNAL and name == "sums" and member < 2 else StopReason.DONE
    output = ProgramOutput("program", said, 0, said) if step == HOSTILE_STEP else None
    return Rollout(
        key, task, Episode(messages, chains, stop, output=output), Scored(reward), Timing(_at(step), 2.0, 0.25)
    )


def _broken(name: str, step: int, draw: int, member: int) -> Rollout:
    whole = _rollout(name, step, draw, member, 0.0)
    return Rollout(
        whole.key,
        whole.task,
        whole.episode,
        Failed(FailureCause.JUDGE, "KeyError", "facts.py:12 'answer'"),
        whole.timing,
    )


def _chain(prompt: str, answer: str, version: int, start: ChainStart = ChainStart.FIRST) -> TokenChain:
    given, sampled = encode_chars(prompt), encode_chars(answer)
    mask = np.array([False] * len(given) + [True] * len(sampled))
    logprobs = np.where(mask, -np.abs(np.sin(np.arange(len(mask)))), 0.0)
    return TokenChain(np.array([*given, *sampled]), mask, logprobs, np.where(mask, version, -1), start)


def _branched(version: int) -> Iterator[TokenChain]:
    yield _chain("ask: plan it", "first I look, then I add", version)
    yield _chain("ask: plan it", "first I search", version, ChainStart.BRANCH)
    yield _chain("summary of all that was said", "so it is 7", version, ChainStart.COMPACTED)


def _computed(rollout: Rollout) -> TrainedRollout:
    """As a learner tells it: the trainer gives each token a little more, and its share of the loss has a sign."""
    chains = []
    for index, chain in enumerate(rollout.episode.chains if rollout.episode else ()):
        places = np.flatnonzero(chain.mask).astype(np.int32)
        losses = (1e-3 * np.cos(places)).astype(np.float32)
        chains.append(TrainedChain(index, places, chain.logprobs[places] + np.float32(0.25), losses))
    return TrainedRollout(rollout.key, 0.5, 0.01, tuple(chains))


def _at(step: int) -> float:
    return 1_760_000_000.0 + STEP_SECONDS * step


def _write_lines(folder: RunFolder) -> None:
    lines, events = [], []
    for step in range(1, STEPS + 1):
        failing, filtered = step >= JUDGE_FAILS, 3.0 if step >= NO_SIGNAL else 0.0
        sizes = {"": 1.0 if failing else 2.0, "/sums": 1.0, "/facts": 0.0 if failing else 1.0}
        numbers: dict[str, float] = {
            "learner/mismatch_mean": 1e-3,
            "learner/entropy": 1.5 - step / 50,
            "engine/restarts": float(step == ENGINE_DIES),
        }
        for end, groups in sizes.items():
            broken = float(MEMBERS) if failing and end != "/sums" else 0.0
            numbers |= {
                f"groups/trained{end}": groups,
                f"failures/judge{end}": broken,
                f"groups/failed{end}": broken / MEMBERS,
                f"groups/filtered{end}": 0.0 if end == "/facts" else filtered,
            }
            if groups:
                rewards = [float((member + step) % 3 > 0) for member in range(MEMBERS)]
                numbers |= {
                    f"groups/size{end}": float(MEMBERS),
                    f"reward/mean{end}": sum(rewards) / MEMBERS,
                    f"response/tokens{end}": float(tokens_at(step)),
                    f"response/truncated{end}": 0.5 if step > NO_SIGNAL else 0.0,
                }
        lines.append(
            {"step": step, "time": _at(step), **numbers, "time/wait": 40.0, "time/train": 12.0, "time/sync": 2.0}
        )
        begin = _at(step) - STEP_SECONDS
        for name, start, seconds in (("wait", 0.0, 40.0), ("train", 40.0, 12.0), ("sync", 53.0, 2.0)):
            events.append(_event(name, step, begin + start, seconds))
        if step == ENGINE_DIES:
            events.append(
                _event("engine_lost", step, begin + 20, 0.0, engine="engine-1", last_words=f"out of memory {HOSTILE}")
            )
            events.append(_event("engine_back", step, begin + 20, 15.0, engine="engine-1"))
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events))


def _event(name: str, step: int, start: float, seconds: float, **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "step": step,
        "start": start,
        "end": start + seconds,
        "who": "Task-1",
        "ok": True,
        "error": None,
        "facts": facts,
    }
