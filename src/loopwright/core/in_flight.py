"""The rollouts that are in flight, as the driver knows them: which agents run, what was sampled for each, and by which
engines; which rollouts are being judged.

Nobody is asked for it. The runner says when a rollout begins and ends, and the controller of the engines which calls it
gets. A call is told by its request id and its affinity, which name the rollout, also through a gateway.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from types import TracebackType
from typing import Protocol

from loopwright.types import GenerateRequest, RolloutKey, Split

DOOR = "door/"
"""The request ids of callers outside begin with this."""
_SESSION = re.compile(r"(?:.*[^0-9A-Za-z])?[te](\d+)-(\d+)-(\d+)-[0-9a-f]{8}")

Name = tuple[str, RolloutKey]
"""The split and the key of a rollout."""


def session_name(split: Split, key: RolloutKey, random: str) -> str:
    """The name of a gateway's session for a rollout. `random` are eight hexadecimal digits."""
    return f"{split[0]}{key.draw}-{key.member}-{key.attempt}-{random}"


class Stage(StrEnum):
    """What a rollout in flight is doing."""

    AGENT = "agent"
    JUDGE = "judge"


class GrowingAnswer(Protocol):
    """The answer to one model call."""

    @property
    def tokens(self) -> int: ...


@dataclass(slots=True, eq=False)
class RolloutInFlight:
    """One rollout. `since` is when its present stage began (Unix time). `turns` counts its model calls that have
    ended."""

    split: str
    key: RolloutKey
    stage: Stage
    since: float
    turns: int = 0
    engines: list[str] = field(default_factory=list)
    calls: list[GrowingAnswer] = field(default_factory=list)
    """The model calls that run."""
    sessions: list[tuple[str, str]] = field(default_factory=list)
    ended_tokens: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens were sampled for it so far."""
        return self.ended_tokens + sum(call.tokens for call in self.calls)

    def began(self, call: GrowingAnswer) -> None:
        self.calls.append(call)

    def asked(self, engine: str) -> None:
        if engine not in self.engines:
            self.engines.append(engine)

    def ended(self, call: GrowingAnswer) -> None:
        self.calls.remove(call)
        self.turns += 1
        self.ended_tokens += call.tokens


class RolloutsInFlight:
    """All of them, in the order in which they began. It belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[Name, RolloutInFlight] = {}
        self._sessions: dict[tuple[str, str], RolloutInFlight] = {}
        self.finished = 0
        """How many agents have ended."""

    def __len__(self) -> int:
        return len(self._running)

    def stage(self, stage: Stage, split: Split, key: RolloutKey) -> Staged:
        """The rollout is in this stage while the block runs."""
        return Staged(self, RolloutInFlight(split, key, stage, time.time()))

    def begin(self, one: RolloutInFlight) -> None:
        self._running[one.split, one.key] = one

    def end(self, one: RolloutInFlight) -> None:
        if self._running.get((one.split, one.key)) is one:
            del self._running[one.split, one.key]
        for session in one.sessions:
            self._sessions.pop(session, None)
        self.finished += one.stage is Stage.AGENT

    def of(self, request: GenerateRequest) -> RolloutInFlight | None:
        """The rollout that this call is made for. None if it is for none that is in flight here."""
        session = request.id.rpartition("/")[0].removeprefix(DOOR), request.affinity
        known = self._sessions.get(session)
        if known is None and (name := _named(*session)) is not None and (known := self._running.get(name)) is not None:
            self._sessions[session] = known
            known.sessions.append(session)
        return known

    def oldest(self, count: int) -> Sequence[RolloutInFlight]:
        return list(islice(self._running.values(), count))

    def count(self, stage: Stage) -> int:
        return sum(one.stage is stage for one in self._running.values())


class Staged:
    """A stage of a rollout as a context manager. It is a class because a generator would cost more, and some agents are
    very short."""

    __slots__ = ("_all", "_one")

    def __init__(self, all_of_them: RolloutsInFlight, one: RolloutInFlight) -> None:
        self._all = all_of_them
        self._one = one

    def __enter__(self) -> RolloutInFlight:
        self._all.begin(self._one)
        return self._one

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.end(self._one)


def _named(session: str, affinity: str) -> Name | None:
    """The rollout that a session is of. The affinity names its split and its group."""
    split, _, group = affinity.partition("/")
    task_set, _, draw = group.rpartition("/")
    if not task_set or not draw.isdecimal():
        return None
    if session.startswith(f"{group}/"):
        member, _, attempt = session[len(group) + 1 :].partition("/")
        numbers: tuple[str, ...] = (draw, member, attempt)
    elif (told := _SESSION.fullmatch(session)) is not None:
        numbers = told.groups()
    else:
        return None
    if not all(number.isdecimal() for number in numbers) or int(numbers[0]) != int(draw):
        return None
    return split, RolloutKey(task_set, *map(int, numbers))
