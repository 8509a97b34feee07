"""What became of one task set's groups and attempts since the last batch, in numbers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from loopwright.produce.settling import Ended
from loopwright.types import Failed, FailureCause, GroupStatus, Rollout


@dataclass(slots=True)
class Tally:
    """`rewards` are those of all scored groups, before any filter; `seconds` is what each group took."""

    statuses: Counter[GroupStatus] = field(default_factory=Counter)
    causes: Counter[FailureCause] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def saw(self, rollout: Rollout) -> None:
        """An attempt that was scored, or failed."""
        if isinstance(rollout.reward, Failed):
            self.causes[rollout.reward.cause] += 1

    def ended(self, one: Ended) -> None:
        self.statuses[one.status] += 1
        # A filter fails with a whole group; the failures of rollouts were seen before.
        self.causes.update(failed.cause for failed in one.failures if failed.cause is FailureCause.FILTER)
        if one.status in (GroupStatus.COMPLETED, GroupStatus.FILTERED):
            self.rewards.extend(one.group.rewards)
        if one.status is not GroupStatus.ABORTED:
            self.seconds.append(one.seconds)


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """Several task sets taken together."""
    total = Tally()
    for tally in tallies:
        total.statuses += tally.statuses
        total.causes += tally.causes
        total.rewards += tally.rewards
        total.seconds += tally.seconds
    return total
