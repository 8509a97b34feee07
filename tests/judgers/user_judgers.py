"""Judgers as users write them, good and bad; loaded by path in the tests beside this file."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from loopwright import Episode, Scored, Task
from loopwright.errors import JudgeError


def length(task: Task, episode: Episode) -> float:
    return float(len(episode.answer))


def where(task: Task, episode: Episode) -> Scored:
    knows_torch = "torch" in sys.modules or "transformers" in sys.modules
    return Scored(float(len(episode.answer)), {"pid": os.getpid(), "knows_torch": knows_torch})


def environment(task: Task, episode: Episode) -> Scored:
    return Scored(1.0, answer=json.dumps(dict(os.environ)))


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


async def cancels_async(task: Task, episode: Episode) -> float:
    """Awaits what it has cancelled itself: the CancelledError is not for whoever awaits the judger."""
    grading = asyncio.ensure_future(asyncio.sleep(60))
    grading.cancel()
    await grading
    return 0.0


def cancels(task: Task, episode: Episode) -> float:
    return asyncio.run(cancels_async(task, episode))


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def speechless(task: Task, episode: Episode) -> float:
    raise SpeechlessError


class Unreadable(float):
    def __float__(self) -> float:
        raise ValueError("no number")


def unreadable(task: Task, episode: Episode) -> float:
    return Unreadable(1.0)


async def hangs_async(task: Task, episode: Episode) -> float:
    await asyncio.sleep(60)
    return 0.0


async def tells_async(task: Task, episode: Episode) -> float:
    """Writes into the file that the answer names when it starts, and when it is cancelled."""
    _tell(episode, "started")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        _tell(episode, "cancelled")
        raise
    return 0.0


def tells(task: Task, episode: Episode) -> float:
    """Writes its process id into the file that the answer names, and hangs."""
    _tell(episode, str(os.getpid()))
    time.sleep(60)
    return 0.0


def _tell(episode: Episode, text: str) -> None:
    draft = Path(f"{episode.answer}.draft")
    draft.write_text(text)
    draft.rename(episode.answer)


async def pid_async(task: Task, episode: Episode) -> float:
    await asyncio.sleep(0.05)
    return os.getpid()


async def waits_for_async(task: Task, episode: Episode) -> Scored:
    """Waits for the file that the answer names before its colon. It leaves a file beside that when it starts."""
    name, _, number = episode.answer.rpartition(":")
    awaited = Path(name)
    awaited.with_name(f"started-{number}-{os.getpid()}").touch()
    while not awaited.exists():  # noqa: ASYNC240
        await asyncio.sleep(0.01)
    return Scored(1.0, {"number": int(number)})


async def dies_async(task: Task, episode: Episode) -> float:
    os._exit(3)


async def stops_async(task: Task, episode: Episode) -> float:
    if episode.answer == "stop":
        raise KeyboardInterrupt
    return 1.0


class OddError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


async def raises_oddly(task: Task, episode: Episode) -> float:
    """Raises what no process but this one can read."""
    raise OddError(code=7)


NOT_A_FUNCTION = 7


def gives_up(task: Task, episode: Episode) -> float:
    raise JudgeError("the sandbox is gone", remedy="start it", error="NoSandbox")


def huge(task: Task, episode: Episode) -> int:
    return 10**400


def wrong(task: Task, episode: Episode) -> object:
    """Does what the function does that the answer names: a process for each would take seconds."""
    return globals()[episode.answer](task, replace(episode, messages=({"role": "assistant", "content": "{}"},)))


async def product(scores: Mapping[str, Scored]) -> Scored:
    values = [scored.value for scored in scores.values()]
    return Scored(math.prod(values), {"both": len(values)})


def merges_badly(scores: Mapping[str, Scored]) -> float:
    return scores["style"].value


def ranks(task: Task, episodes: Sequence[Episode]) -> list[float]:
    """The longest answer is the best."""
    order = sorted(range(len(episodes)), key=lambda i: len(episodes[i].answer))
    return [order.index(i) / (len(episodes) - 1) for i in range(len(episodes))]


async def ranks_with_parts(task: Task, episodes: Sequence[Episode]) -> list[Scored]:
    return [Scored(float(i), {"place": i}, episode.answer) for i, episode in enumerate(episodes)]


def ranks_too_few(task: Task, episodes: Sequence[Episode]) -> list[float]:
    return [1.0]


async def ranks_with_one_number(task: Task, episodes: Sequence[Episode]) -> float:
    return 1.0


async def ranks_with_nan(task: Task, episodes: Sequence[Episode]) -> list[float]:
    return [math.nan for _ in episodes]


async def ranks_as_text(task: Task, episodes: Sequence[Episode]) -> str:
    return "12"


def ranks_slowly(task: Task, episodes: Sequence[Episode]) -> list[float]:
    time.sleep(60)
    return []
