"""Who goes where: plans that fit, plans that do not, and what their error says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.cluster.nodes import ClusterNode, Resources, bundles_of, may_run_on, per_actor
from loopwright.cluster.plan import Plan, make_plan
from loopwright.cluster.plan_text import totals
from loopwright.config.placement import Strategy
from loopwright.config.roles import Role, RoleKind
from loopwright.errors import ConfigError

GIB = 2**30


def node(id: str, cpus: float = 4, *, gpus: float = 0, gib: float = 8, used: float = 0, driver: bool = False, **labels):
    total = Resources(cpus, gpus, gib * GIB)
    return ClusterNode(id, f"10.0.0.{id}", total, total - Resources(used), driver, labels)


def role(kind: RoleKind, count: int, cpus: float = 1.0, name: str = "x", **more) -> Role:
    return Role(kind, name, count, cpus, **more)


def where(plan: Plan) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one, place, count in plan.counts():
        found.setdefault(one.kind, {})[place.id] = count
    return found


def refused(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> str:
    with pytest.raises(ConfigError) as error:
        make_plan(roles, nodes)
    assert error.value.remedy
    return error.value.message


JUDGERS, LOOPS = role(RoleKind.JUDGERS, 8, 2.0), role(RoleKind.LOOPS, 4)


def test_pack_takes_as_few_nodes_as_possible_and_spread_as_many():
    nodes = [node("1", driver=True), node("2"), node("3")]
    for strategy, counts in ((Strategy.PACK, [3]), (Strategy.SPREAD, [1, 1, 1])):
        plan = make_plan([role(RoleKind.LOOPS, 3, strategy=strategy)], nodes)
        assert sorted(where(plan)["loops"].values()) == counts


def test_pack_prefers_the_node_that_holds_all():
    plan = make_plan([role(RoleKind.LOOPS, 4)], [node("1", 2, driver=True), node("2", 4), node("3", 2)])
    assert where(plan) == {"loops": {"2": 4}}


def test_a_strategy_gives_way_before_the_run_does():
    """Spread over both nodes, the judgers would leave no node for the engine."""
    nodes = [node("1", 4), node("2", 4)]
    judgers = role(RoleKind.JUDGERS, 4, 1.0, strategy=Strategy.SPREAD)
    plan = make_plan([judgers, role(RoleKind.ENGINES, 1, 4.0)], nodes)
    assert list(where(plan)["judgers"].values()) == [4]


def test_the_error_has_the_arithmetic_and_names_who_does_not_fit():
    words = refused([JUDGERS, LOOPS], [node("1", 8), node("2", 8)])
    assert "8 judgers x 2 CPUs + 4 loops x 1 CPU = 20 CPUs; the cluster has 16, its largest node 8" in words
    assert "loops 'x': there is room for 0 of 4 actors; each takes 1 CPU" in words
    assert "judgers 'x'" not in words, "they fit"


def test_an_actor_that_is_larger_than_every_node():
    words = refused([role(RoleKind.ENGINES, 1, 6.0)], [node("1", 4), node("2", 4)])
    assert "1 engine x 6 CPUs = 6 CPUs; the cluster has 8, its largest node 4" in words
    assert (
        "engines: there is room for 0 of 1 actors; each takes 6 CPUs, and no node that it may use has as much" in words
    )


def test_memory_and_gpus_are_counted_too():
    words = refused([role(RoleKind.LOOPS, 3, 0.0, memory=4 * GIB)], [node("1"), node("2", gib=2)])
    assert "3 loops x 4 GiB = 12 GiB; the cluster has 10, its largest node 8" in words
    assert "CPU = " not in words, "nobody asks for one"
    words = refused([role(RoleKind.ENGINES, 2, 1.0, gpus=0.75)], [node("1", gpus=1)])
    assert "2 engines x 0.75 GPUs = 1.5 GPUs; the cluster has 1, its largest node 1" in words


def test_what_others_use_is_not_free():
    words = refused([role(RoleKind.LOOPS, 4)], [node("1", 4, used=1)])
    assert "the cluster has 3" in words
    assert "10.0.0.1 (1): 1 CPU in use" in words


def test_two_roles_of_one_kind_are_told_by_their_names():
    words = refused([role(RoleKind.JUDGERS, 3, name="a"), role(RoleKind.JUDGERS, 1, name="b")], [node("1", 3)])
    assert "3 judgers 'a' x 1 CPU + 1 judger 'b' x 1 CPU = 4 CPUs" in words


def test_actors_without_resources_fit_on_a_full_node():
    """Without CPUs of its own, an actor needs no free one."""
    plan = make_plan([role(RoleKind.GATEWAY, 1, 0.0)], [node("1", 4, used=4)])
    assert where(plan) == {"gateway": {"1": 1}}


def test_nodes_of_their_own_for_engines():
    nodes = [node("1", 8, driver=True), node("2", 4), node("3", 4), node("4", 1)]
    plan = make_plan([role(RoleKind.ENGINES, 4, 2.0, nodes=2)], nodes)
    assert where(plan) == {"engines": {"2": 2, "3": 2}}
    plan = make_plan([role(RoleKind.ENGINES, 4, 2.0, nodes=0)], nodes)
    assert where(plan) == {"engines": {"1": 4}}
    words = refused([role(RoleKind.ENGINES, 4, 1.0, nodes=4)], nodes)
    assert "rollout.nodes is 4, and the nodes other than the driver's are 3" in words
    words = refused([role(RoleKind.ENGINES, 10, 1.0, nodes=2)], nodes)
    assert "the 5 of a node take 5 CPUs, and no node that it may use has as much" in words


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [("a", {"1"}), ("!a", {"2", "3"}), ("in(a, b)", {"1", "2"}), ("!in(a, b)", {"3"}), ("c", set())],
)
def test_labels_choose_the_nodes(wanted: str, ids: set[str]):
    nodes = [node("1", zone="a"), node("2", zone="b"), node("3")]
    loops = role(RoleKind.LOOPS, 12, 1.0, labels={"zone": wanted})
    assert {one.id for one in nodes if may_run_on(loops, one)} == ids
    if not ids:
        assert "no node has the labels zone: c" in refused([loops], nodes)


def test_those_with_the_fewest_choices_are_placed_first():
    nodes = [node("1", 2, zone="a"), node("2", 2)]
    picky = role(RoleKind.JUDGERS, 2, 1.0, labels={"zone": "a"})
    assert where(make_plan([role(RoleKind.LOOPS, 2), picky], nodes)) == {"judgers": {"1": 2}, "loops": {"2": 2}}


def test_fractions_add_up():
    """Ten tenths are one."""
    make_plan([role(RoleKind.LOOPS, 10, 0.1), role(RoleKind.JUDGERS, 3, 0.3333)], [node("1", 2)])


def test_the_table_and_the_totals():
    nodes = [node("1", 8, driver=True), node("2", 8, used=2)]
    roles = [JUDGERS, role(RoleKind.GATEWAY, 1, 0.25, "gateway")]
    plan = make_plan([role(RoleKind.JUDGERS, 2, 2.0, "exact", strategy=Strategy.SPREAD), roles[1]], nodes)
    assert list(plan.lines()) == [
        "role             actors  per actor  node",
        "judgers 'exact'  1       2 CPUs     10.0.0.1 (1)",
        "judgers 'exact'  1       2 CPUs     10.0.0.2 (2)",
        "gateway          1       0.25 CPUs  10.0.0.1 (1)",
    ]
    assert totals(plan.roles, nodes) == (
        "the run takes 4.25 CPUs of 14 CPUs, 16 GiB on 2 nodes; the others of 16 CPUs, 16 GiB are in use"
    )


@st.composite
def clusters(draw) -> tuple[list[Role], list[ClusterNode]]:
    amounts = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])
    roles = [
        Role(
            kind,
            f"r{number}",
            draw(st.integers(1, 3)),
            draw(amounts),
            draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
            draw(st.sampled_from([None, GIB, 2 * GIB])),
            draw(st.sampled_from(list(Strategy))),
            labels=draw(st.sampled_from([{}, {}, {"zone": "a"}, {"zone": "!a"}])),
        )
        for number, kind in enumerate(draw(st.lists(st.sampled_from([RoleKind.LOOPS, RoleKind.JUDGERS]), max_size=3)))
    ]
    if draw(st.booleans()):
        nodes = draw(st.integers(0, 2))
        roles.append(Role(RoleKind.ENGINES, "e", max(nodes, 1) * draw(st.integers(1, 2)), draw(amounts), nodes=nodes))
    machines = [
        node(
            str(number),
            draw(st.integers(0, 4)),
            gpus=draw(st.integers(0, 1)),
            gib=draw(st.integers(0, 4)),
            driver=number == 0,
            **draw(st.sampled_from([{}, {"zone": "a"}])),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return roles, machines


def fits(plan: Plan, roles: Sequence[Role]) -> None:
    """A plan holds everybody, nowhere more than is free, and only where each may be."""
    taken: dict[str, Resources] = {}
    for one, place, count in plan.counts():
        assert may_run_on(one, place)
        taken[place.id] = taken.get(place.id, Resources()) + per_actor(one) * count
        assert place.free.holds(taken[place.id])
        assert not one.nodes or count == one.count // one.nodes
    for one in roles:
        assert sum(count for other, _, count in plan.counts() if other.key == one.key) == one.count


def first_fit(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> bool:
    """Whether everybody finds room if each takes the first node that has it."""
    free = {one.id: one.free for one in nodes}
    for one in roles:
        used = set()
        for bundle in bundles_of(one):
            for place in nodes:
                if (
                    may_run_on(one, place)
                    and free[place.id].holds(bundle.takes)
                    and not (one.nodes and place.id in used)
                ):
                    free[place.id] -= bundle.takes
                    used.add(place.id)
                    break
            else:
                return False
    return True


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_a_plan_holds_and_what_a_greedy_placement_places_is_placed(case: tuple[list[Role], list[ClusterNode]]):
    roles, nodes = case
    greedy = any(
        first_fit(some, others) for some in itertools.permutations(roles) for others in itertools.permutations(nodes)
    )
    if greedy:
        fits(make_plan(roles, nodes), roles)
        return
    with suppress(ConfigError):
        fits(make_plan(roles, nodes), roles)


@settings(max_examples=150, deadline=None)
@given(clusters(), st.randoms())
def test_the_order_of_the_nodes_makes_no_difference(case: tuple[list[Role], list[ClusterNode]], random):
    roles, nodes = case

    def result(some: Sequence[ClusterNode]) -> object:
        try:
            return make_plan(roles, some)
        except ConfigError as error:
            return error.message

    others = list(nodes)
    random.shuffle(others)
    assert result(nodes) == result(others)


def test_a_large_cluster_is_planned_at_once():
    """Also one that does not fit, with more actors than are searched for."""
    nodes = [node(str(number), 16, driver=number == 0) for number in range(50)]
    roles = [role(RoleKind.LOOPS, 400), role(RoleKind.JUDGERS, 400, strategy=Strategy.SPREAD)]
    fits(make_plan(roles, nodes), roles)
    assert "= 801 CPUs; the cluster has 800" in refused([*roles, role(RoleKind.GATEWAY, 1)], nodes)
