"""Keeps recently stored rollouts in memory until they are trained, so that they need not be read back.

The storage stays the truth. Only committed rollouts are kept here, and a group with a missing member is read from the
storage.
"""

from __future__ import annotations

from collections.abc import Mapping

from loopwright.types import Rollout

MOST_TOKENS = 4_000_000
"""About 50 MB of chains, plus the messages of the same rollouts. Rollouts beyond this limit are read back from the
storage; the oldest groups, which are trained first, are kept here."""


class Fresh:
    """The latest stored attempt of each member, by task set and draw. It keeps at most `most` tokens."""

    def __init__(self, most: int = MOST_TOKENS) -> None:
        self._most = most
        self._groups: dict[tuple[str, int], dict[int, Rollout]] = {}
        self._tokens = 0

    def put(self, rollout: Rollout) -> None:
        """Keep a rollout that is stored, if there is room."""
        key = rollout.key
        members = self._groups.setdefault((key.task_set, key.draw), {})
        before = members.pop(key.member, None)
        self._tokens -= _tokens(before)
        if before is not None and before.key.attempt > key.attempt:
            rollout = before
        if self._tokens + _tokens(rollout) <= self._most:
            members[key.member] = rollout
            self._tokens += _tokens(rollout)

    def pop(self, task_set: str, draw: int, attempts: Mapping[int, int]) -> tuple[Rollout, ...] | None:
        """Remove a group and return its members in these `attempts`, in order. None if one of them is not here."""
        members = self._groups.pop((task_set, draw), {})
        self._tokens -= sum(map(_tokens, members.values()))
        found = [members.get(member) for member in sorted(attempts)]
        whole = tuple(one for one in found if one is not None and one.key.attempt == attempts[one.key.member])
        return whole if len(whole) == len(found) else None


def _tokens(rollout: Rollout | None) -> int:
    return 0 if rollout is None or rollout.episode is None else sum(map(len, rollout.episode.chains))
