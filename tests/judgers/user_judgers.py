"""Judgers as users write them, good and bad; loaded by path in the tests beside this file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from loopwright import Episode, Scored, Task


def length(task: Task, episode: Episode) -> float:
    return float(len(episode.answer))


def knows_torch(task: Task, episode: Episode) -> bool:
    return "torch" in sys.modules or "transformers" in sys.modules


def pid(task: Task, episode: Episode) -> int:
    return os.getpid()


def with_parts(task: Task, episode: Episode) -> Scored:
    return Scored(True, {"value": 2, "format": 0.5})


def string(task: Task, episode: Episode) -> str:
    return "0.5"


def none(task: Task, episode: Episode) -> None:
    return None


def nan(task: Task, episode: Episode) -> float:
    return float("nan")


def nan_part(task: Task, episode: Episode) -> Scored:
    return Scored(1.0, {"format": float("inf")})


def raises(task: Task, episode: Episode) -> float:
    return float(json.loads(episode.answer)["score"])


def leaves(task: Task, episode: Episode) -> float:
    sys.exit("enough")


def hangs(task: Task, episode: Episode) -> float:
    if episode.answer == "quick":
        return 1.0
    time.sleep(60)
    return 0.0


def hangs_loudly(task: Task, episode: Episode) -> float:
    print(os.getpid(), flush=True)
    time.sleep(60)
    return 0.0


def dies(task: Task, episode: Episode) -> float:
    if episode.answer == "quick":
        return 1.0
    os._exit(3)


async def length_async(task: Task, episode: Episode) -> float:
    await asyncio.sleep(0)
    return float(len(episode.answer))


async def raises_async(task: Task, episode: Episode) -> float:
    raise TimeoutError("the grader's own")


async def hangs_async(task: Task, episode: Episode) -> float:
    await asyncio.sleep(60)
    return 0.0


NOT_A_FUNCTION = 7
