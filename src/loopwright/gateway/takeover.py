"""What a resumed run takes over from its earlier process on a gateway: the sessions that had completed (D1).

A session is kept if its run's ledger still lacks its rollout, and if the checkpoint has the weights that sampled its
tokens. All others are lost: their members are made again, as the next attempts. What is not kept is deleted before the
run goes on, because a later checkpoint may give the same number to other weights.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from loopwright.errors import RunError
from loopwright.gateway.client import GatewayClient
from loopwright.gateway.outcome import Outcome, outcome_from_json
from loopwright.gateway.record import record_from_json
from loopwright.gateway.registration import RUN_SESSION
from loopwright.ports import ResumePlan
from loopwright.types import GroupStatus, RolloutKey, Split

log = logging.getLogger("loopwright")

Member = tuple[str, int, int]
"""The task set, the draw, and the number of the member."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The groups that a resumed run continues. `stored` has, for each task set and draw, the latest stored attempt of
    each member. `opened_at` has the step of the checkpoint at which each lineage of the run was opened."""

    stored: Mapping[tuple[str, int], Mapping[int, int]] = field(default_factory=dict)
    opened_at: Sequence[int] = ()

    @classmethod
    def of(cls, plans: Mapping[str, ResumePlan], opened_at: Sequence[int]) -> Self:
        held = (group for plan in plans.values() for group in plan.held if group.row.status is GroupStatus.ABORTED)
        stored = {
            (group.row.task_set, group.row.draw): {member.member: member.attempt for member in group.members}
            for group in held
        }
        return cls(stored, opened_at)

    def lacks(self, key: RolloutKey) -> bool:
        members = self.stored.get((key.task_set, key.draw))
        return members is not None and key.attempt > members.get(key.member, -1)

    def newest_version(self, lineage: int) -> int:
        """The newest weights of that lineage that every later lineage has kept."""
        return min(self.opened_at[lineage + 1 :], default=-1)


NOTHING = Unfinished()


@dataclass(frozen=True, slots=True)
class KeptSession:
    """A completed session of an earlier process."""

    id: str
    version: str
    outcome: Outcome


@dataclass(slots=True)
class EarlierSessions:
    """The sessions of earlier processes: those that are kept, and the latest attempt at each member that they had
    begun."""

    _kept: dict[RolloutKey, KeptSession] = field(default_factory=dict)
    _latest: dict[Member, int] = field(default_factory=dict)

    def begun(self, key: RolloutKey, kept: KeptSession | None) -> None:
        member = (key.task_set, key.draw, key.member)
        self._latest[member] = max(key.attempt, self._latest.get(member, 0))
        if kept is not None:
            self._kept[key] = kept

    def first_attempt(self, key: RolloutKey) -> int:
        """The attempt to begin with: the latest one if it is kept, otherwise the one after it."""
        latest = self._latest.get((key.task_set, key.draw, key.member), -1)
        if latest < key.attempt:
            return key.attempt
        return latest if RolloutKey(key.task_set, key.draw, key.member, latest) in self._kept else latest + 1

    def pop(self, key: RolloutKey) -> KeptSession | None:
        return self._kept.pop(key, None)


async def take_over(client: GatewayClient, unfinished: Unfinished) -> EarlierSessions:
    """Look through the sessions that earlier processes of the run have left. The run is registered already, so all of
    them have ended."""
    earlier = EarlierSessions()
    own = client.registration
    for said in (await client.ask("GET", "/sessions"))["sessions"]:
        named = RUN_SESSION.fullmatch(said["id"])
        if named is None or named["run"] != own.holder.run or said["id"].startswith(own.prefix):
            continue
        key = key_of(said["label"])
        kept = None
        if said["has_outcome"]:
            if key is not None and unfinished.lacks(key):
                kept = await _kept(client, said["id"], unfinished.newest_version(int(named["lineage"])))
            if kept is None:
                await client.ask("DELETE", f"/sessions/{said['id']}")
        if key is not None and unfinished.lacks(key):
            earlier.begun(key, kept)
    return earlier


async def _kept(client: GatewayClient, session_id: str, newest: int) -> KeptSession | None:
    """The session, if all its tokens are of weights up to `newest`, and if it can be read."""
    said = await client.ask("GET", f"/sessions/{session_id}/record")
    try:
        outcome = outcome_from_json(said["outcome"], record_from_json(said))
    except RunError as error:
        log.warning("session %s of the killed run is made again: %s", session_id, error.message)
        return None
    versions = (int(np.maximum.reduce(chain.versions, initial=-1)) for chain in outcome.episode.chains)
    return None if max(versions, default=-1) > newest else KeptSession(session_id, said["version"], outcome)


def label_of(split: Split, key: RolloutKey) -> str:
    """Names the rollout of a session, for a process that takes the run over."""
    return json.dumps([split, key.task_set, key.draw, key.member, key.attempt])


def key_of(label: str) -> RolloutKey | None:
    """The rollout for training that a label names. An evaluation that was interrupted is made again as a whole."""
    try:
        match json.loads(label):
            case [Split.TRAIN.value, str(task_set), int(draw), int(member), int(attempt)]:
                return RolloutKey(task_set, draw, member, attempt)
    except ValueError:
        pass
    return None
