"""A plan in words: the table of who goes where, and the arithmetic of one that does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from loopwright.cluster.nodes import ClusterNode, Resources, bundles_of, may_run_on, per_actor
from loopwright.config.roles import Role
from loopwright.errors import ConfigError

COLUMNS = ("role", "actors", "per actor", "node")


def table(counts: Iterable[tuple[Role, ClusterNode, int]]) -> Iterator[str]:
    """A table of how many actors of each role are on which node, line by line."""
    rows = [COLUMNS]
    rows += [(role.title, str(count), resources_text(per_actor(role)), node.name) for role, node, count in counts]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def totals(roles: Sequence[Role], nodes: Sequence[ClusterNode]) -> str:
    """What the run takes, and what is free."""
    taken = sum((per_actor(role) * role.count for role in roles), Resources())
    free = sum((node.free for node in nodes), Resources())
    total = sum((node.total for node in nodes), Resources())
    where = f"{len(nodes)} nodes" if len(nodes) > 1 else "1 node"
    busy = f"; the others of {resources_text(total)} are in use" if free != total else ""
    return f"the run takes {resources_text(taken)} of {resources_text(free)} on {where}{busy}"


def resources_text(resources: Resources) -> str:
    """`2 CPUs, 1 GPU, 4 GiB`. CPUs are always named."""
    parts = [_amount(resources.cpus, "CPU")]
    parts += [_amount(resources.gpus, "GPU")] if resources.gpus else []
    parts += [_amount(resources.memory, "GiB")] if resources.memory else []
    return ", ".join(parts)


def too_small(roles: Sequence[Role], nodes: Sequence[ClusterNode], most: Iterable[tuple[Role, int]]) -> ConfigError:
    """The error of roles that do not fit. `most` says how many actors of each find room."""
    lines = [line for unit in ("CPU", "GPU", "GiB") if (line := _arithmetic(roles, nodes, unit))]
    lines += [_left_over(role, count, nodes) for role, count in most if count < role.count]
    lines += [
        f"{node.name}: {resources_text(node.total - node.free)} in use" for node in nodes if node.free != node.total
    ]
    return ConfigError(
        "the cluster has no room for all actors of the run\n  " + "\n  ".join(lines),
        remedy="lower num_actors, or what an actor reserves (num_cpus_per_actor, num_gpus_per_actor, "
        "memory_per_actor), or give the cluster more or larger nodes",
    )


def _arithmetic(roles: Sequence[Role], nodes: Sequence[ClusterNode], unit: str) -> str:
    """`8 judgers x 2 CPUs + 4 loops x 1 CPU = 20 CPUs; the cluster has 16, its largest node 8`."""
    of = OF[unit]
    asking = [role for role in roles if of(per_actor(role))]
    if not asking:
        return ""
    kinds = Counter(role.kind for role in roles)
    terms = [f"{_several(role, kinds[role.kind] > 1)} x {_amount(of(per_actor(role)), unit)}" for role in asking]
    total = sum(of(per_actor(role) * role.count) for role in asking)
    free = [of(node.free) for node in nodes]
    has = f"the cluster has {_number(sum(free), unit)}, its largest node {_number(max(free, default=0.0), unit)}"
    return f"{' + '.join(terms)} = {_amount(total, unit)}; {has}"


def _several(role: Role, with_name: bool) -> str:
    kind = role.kind.removesuffix("s") if role.count == 1 else role.kind
    return f"{role.count} {kind}" + (f" {role.name!r}" if with_name else "")


def _left_over(role: Role, placed: int, nodes: Sequence[ClusterNode]) -> str:
    allowed = [node for node in nodes if may_run_on(role, node)]
    labels = ", ".join(f"{key}: {value}" for key, value in role.labels.items())
    bundle = bundles_of(role)[0]
    if role.nodes and len(allowed) < role.nodes:
        others = f" with the labels {labels}" if labels else ""
        why = f"rollout.nodes is {role.nodes}, and the nodes other than the driver's{others} are {len(allowed)}"
    elif not allowed:
        why = f"no node has the labels {labels}" if labels else "the driver's node is not one of the cluster's"
    elif not any(node.total.holds(bundle.takes) for node in allowed):
        together = f"the {bundle.count} of a node take" if bundle.count > 1 else "each takes"
        why = f"{together} {resources_text(bundle.takes)}, and no node that it may use has as much"
    else:
        why = f"each takes {resources_text(per_actor(role))}"
    return f"{role.title}: there is room for {placed} of {role.count} actors; {why}"


OF: dict[str, Callable[[Resources], float]] = {
    "CPU": lambda resources: resources.cpus,
    "GPU": lambda resources: resources.gpus,
    "GiB": lambda resources: resources.memory,
}


def _amount(value: float, unit: str) -> str:
    return f"{_number(value, unit)} {unit}{'' if value == 1 or unit == 'GiB' else 's'}"


def _number(value: float, unit: str) -> str:
    return f"{value / 2**30:.3g}" if unit == "GiB" else f"{value:g}"
