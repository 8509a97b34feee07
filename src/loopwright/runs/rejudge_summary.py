"""Where two judgers differ: in numbers, and in the order of the rollouts of a group, from which training learns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from loopwright.runs.rejudged_scores import Judgement


@dataclass(frozen=True, slots=True)
class TaskSetDifference:
    """One task set. Means and differences are over rollouts that have both scores."""

    task_set: str
    rollouts: int
    failed: int
    """The new judger gave no score."""
    unscored_before: int
    before: float | None
    after: float | None
    differ: int
    pairs: int
    """Pairs of one group that have both scores."""
    reordered: int
    """Pairs that the two judgers put in another order; a tie of one of them only counts as such."""


def differences(judgements: Iterable[Judgement]) -> list[TaskSetDifference]:
    by_set: defaultdict[str, list[Judgement]] = defaultdict(list)
    for one in judgements:
        by_set[one.key.task_set].append(one)
    return [_difference(name, found) for name, found in sorted(by_set.items())]


def largest(judgements: Iterable[Judgement], limit: int) -> list[Judgement]:
    """Those that differ most."""
    differ = [one for one in judgements if _off(one)]
    return sorted(differ, key=lambda one: (-_off(one), one.key))[:limit]


def _difference(name: str, found: Sequence[Judgement]) -> TaskSetDifference:
    both = [(one.before, one.after) for one in found if one.before is not None and one.after is not None]
    pairs = [pair for group in _groups(found) for pair in combinations(group, 2)]
    return TaskSetDifference(
        name,
        rollouts=len(found),
        failed=sum(one.after is None for one in found),
        unscored_before=sum(one.before is None for one in found),
        before=sum(before for before, _ in both) / len(both) if both else None,
        after=sum(after for _, after in both) / len(both) if both else None,
        differ=sum(before != after for before, after in both),
        pairs=len(pairs),
        reordered=sum(_order(a[0], b[0]) != _order(a[1], b[1]) for a, b in pairs),
    )


def _groups(found: Iterable[Judgement]) -> Iterable[list[tuple[float, float]]]:
    groups: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for one in found:
        if one.before is not None and one.after is not None:
            groups[one.key.draw, one.round].append((one.before, one.after))
    return groups.values()


def _order(one: float, other: float) -> int:
    return (one > other) - (one < other)


def _off(one: Judgement) -> float:
    return abs(one.after - one.before) if one.before is not None and one.after is not None else 0.0
