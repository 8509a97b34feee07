"""Decides who goes where: the actors of a run on the nodes of a cluster. Or it says why they do not fit.

The invariants. A plan never puts more on a node than is free there. What first-fit can place is placed, and so is
whatever a search of SEARCH_STEPS finds. The order in which the nodes are given makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loopwright.cluster.nodes import Bundle, ClusterNode, Resources, bundles_of, may_run_on
from loopwright.cluster.plan_text import table, too_small
from loopwright.config.placement import Strategy
from loopwright.config.roles import Role

SEARCH_STEPS = 20_000
"""How many places are tried when the simple ways of placing have failed."""
LARGEST_SEARCH = 64
"""A search is made for at most so many bundles."""


@dataclass(frozen=True, slots=True)
class PlacedBundle:
    """A bundle, and its node."""

    bundle: Bundle
    node: ClusterNode


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every bundle goes, role by role, in the order in which the roles are to be placed."""

    placed: tuple[PlacedBundle, ...]

    @property
    def roles(self) -> list[Role]:
        return list({one.bundle.role.key: one.bundle.role for one in self.placed}.values())

    def counts(self) -> Iterator[tuple[Role, ClusterNode, int]]:
        """How many actors of each role are on which node."""
        numbers: Counter[tuple[str, str]] = Counter()
        for one in self.placed:
            numbers[one.bundle.role.key, one.node.id] += one.bundle.count
        both = {(one.bundle.role.key, one.node.id): (one.bundle.role, one.node) for one in self.placed}
        yield from ((*both[key], count) for key, count in numbers.items())

    def lines(self) -> Iterator[str]:
        """A table of who goes where."""
        return table(self.counts())


def make_plan(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> Plan:
    """Who goes where. Raises ConfigError, with the arithmetic, if there is no room for everybody."""
    ordered = sorted(nodes, key=lambda node: (not node.is_driver, node.address, node.id))
    hardest = _hardest_first(roles, ordered)
    for order, choose in ((hardest, _by_strategy), (roles, _by_strategy), (hardest, _first), (roles, _first)):
        free, placed = {node.id: node.free for node in ordered}, list[PlacedBundle]()
        for role in order:
            placed += _place(role, ordered, free, choose)
        if len(placed) == sum(len(bundles_of(role)) for role in roles):
            return Plan(tuple(placed))
    if (found := _search(hardest, ordered)) is not None:
        return Plan(found)
    raise too_small(roles, ordered, _most(hardest, ordered))


Choose = Callable[[Bundle, Sequence[ClusterNode], Mapping[str, Resources], Counter[str]], ClusterNode]
"""The node for a bundle among those with room, given what is free on each, and how many of its role each has."""


def _place(role: Role, nodes: Sequence[ClusterNode], free: dict[str, Resources], choose: Choose) -> list[PlacedBundle]:
    """Place as much of a role as there is room for. What it takes is taken from `free`."""
    used: Counter[str] = Counter()
    placed = []
    for bundle in bundles_of(role):
        fitting = [node for node in nodes if _fits(bundle, node, free, used)]
        if not fitting:
            break
        node = choose(bundle, fitting, free, used)
        free[node.id] -= bundle.takes
        used[node.id] += 1
        placed.append(PlacedBundle(bundle, node))
    return placed


def _fits(bundle: Bundle, node: ClusterNode, free: Mapping[str, Resources], used: Counter[str]) -> bool:
    # With `nodes`, every bundle has a node of its own.
    is_taken = bool(bundle.role.nodes) and used[node.id] > 0
    return may_run_on(bundle.role, node) and free[node.id].holds(bundle.takes) and not is_taken


def _by_strategy(
    bundle: Bundle, fitting: Sequence[ClusterNode], free: Mapping[str, Resources], used: Counter[str]
) -> ClusterNode:
    if bundle.role.strategy is Strategy.SPREAD:
        return min(fitting, key=lambda node: (used[node.id], -free[node.id].cpus))
    return min(fitting, key=lambda node: (not used[node.id], -_room(bundle, free[node.id])))


def _first(
    bundle: Bundle, fitting: Sequence[ClusterNode], free: Mapping[str, Resources], used: Counter[str]
) -> ClusterNode:
    return fitting[0]


def _room(bundle: Bundle, free: Resources) -> int:
    """How many such bundles fit, up to as many as there are."""
    takes = bundle.takes
    pairs = ((free.cpus, takes.cpus), (free.gpus, takes.gpus), (free.memory, takes.memory))
    return min([len(bundles_of(bundle.role)), *(int(has / one) for has, one in pairs if one)])


def _hardest_first(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> list[Role]:
    """Those with the fewest nodes to choose from first, and the largest of them before the others."""

    def difficulty(role: Role) -> tuple[float, ...]:
        takes = bundles_of(role)[0].takes
        return sum(may_run_on(role, node) for node in nodes), -takes.gpus, -takes.cpus, -takes.memory

    return sorted(roles, key=difficulty)


def _most(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> list[tuple[Role, int]]:
    """How many actors of each role find room, if every role takes what it can, one after the other."""
    free = {node.id: node.free for node in nodes}
    return [(role, sum(one.bundle.count for one in _place(role, nodes, free, _by_strategy))) for role in roles]


def _search(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> tuple[PlacedBundle, ...] | None:
    """Try all placements, up to SEARCH_STEPS. None if none was found."""
    bundles = [bundle for role in roles for bundle in bundles_of(role)]
    if len(bundles) > LARGEST_SEARCH:
        return None
    free = {node.id: node.free for node in nodes}
    used = {role.key: Counter[str]() for role in roles}
    steps = 0

    def rest(number: int, first: int) -> tuple[PlacedBundle, ...] | None:
        nonlocal steps
        if number == len(bundles):
            return ()
        bundle = bundles[number]
        is_last = number + 1 == len(bundles) or bundles[number + 1].role.key != bundle.role.key
        for index in range(first, len(nodes)):
            node = nodes[index]
            if not _fits(bundle, node, free, used[bundle.role.key]) or steps > SEARCH_STEPS:
                continue
            steps += 1
            free[node.id] -= bundle.takes
            used[bundle.role.key][node.id] += 1
            # Equal bundles are tried in one order only.
            if (found := rest(number + 1, 0 if is_last else index)) is not None:
                return (PlacedBundle(bundle, node), *found)
            free[node.id] += bundle.takes
            used[bundle.role.key][node.id] -= 1
        return None

    return rest(0, 0)
