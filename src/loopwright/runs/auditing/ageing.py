"""Compares what was trained with the stored tokens and with the staleness policy that applied then."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from loopwright.buffer.archive import Archive, GroupKey, Parcel, ParcelKind
from loopwright.buffer.codec import decode_task
from loopwright.buffer.storage import ledger
from loopwright.core.constrained import without_constrained
from loopwright.core.staleness import is_too_old
from loopwright.errors import LoopwrightError
from loopwright.ports import StalePolicy
from loopwright.runs.auditing.comparing import LedgerRow
from loopwright.runs.auditing.findings import Finding, FindingKind, group_name
from loopwright.runs.auditing.lives import Life
from loopwright.types import Group, Scored, Stale


def check_trained(
    db: sqlite3.Connection, archive: Archive, rows: Mapping[GroupKey, LedgerRow], lives: Mapping[GroupKey, Life]
) -> Iterator[Finding]:
    """Check the tokens of every trained group. It goes step by step, because there is one file per step."""
    policies = _policies(db)
    consumed = sorted((row.step, group) for group, row in rows.items() if row.step is not None)
    for step, group in consumed:
        row, life = rows[group], lives.get(group, Life())
        policy = policies.get(life.lineage, StalePolicy(horizon=None))
        try:
            task = decode_task(row.task)
            parcel = Parcel(ParcelKind.TRAINED, step)
            members = ledger.members_of(db, archive, group, task, parcel, in_time=True)
        except LoopwrightError as error:
            yield Finding(FindingKind.DAMAGED, group_name(group), error.message)
            continue
        scored, _ = without_constrained(
            Group(*group[:2], task, tuple(one for one in members if isinstance(one.reward, Scored)))
        )
        yield from (
            Finding(kind, group_name(group), what) for kind, what in _aged(scored, step, policy, row.expiries, life)
        )


def check_untrained(db: sqlite3.Connection, archive: Archive) -> Iterator[Finding]:
    """Check, file by file, that the payloads of archived groups that were not trained can be read."""
    found = db.execute(
        "SELECT task_set, draw, round, task, archived FROM groups WHERE archived IS NOT NULL ORDER BY archived, 1, 2, 3"
    ).fetchall()
    for task_set, draw, round, task, archived in found:
        group, parcel = (task_set, draw, round), Parcel(ParcelKind.UNTRAINED, archived)
        try:
            ledger.members_of(db, archive, group, decode_task(task), parcel)
        except LoopwrightError as error:
            yield Finding(FindingKind.DAMAGED, group_name(group), error.message)


def _policies(db: sqlite3.Connection) -> dict[int, StalePolicy]:
    found = db.execute("SELECT lineage, stale, horizon, max_expiries FROM lineages")
    return {lineage: StalePolicy(Stale(stale), horizon, most) for lineage, stale, horizon, most in found}


def _aged(group: Group, step: int, policy: StalePolicy, expiries: int, life: Life) -> Iterator[tuple[FindingKind, str]]:
    """What is wrong with the age of the tokens of a group that was trained at `step`."""
    if not group.rollouts:
        yield FindingKind.LOST, f"it was trained at step {step}, and has no scored rollout"
    chains = (chain for one in group.rollouts if one.episode for chain in one.episode.trained_chains)
    versions = {int(version) for chain in chains for version in chain.versions}
    sampled = sorted(versions - {-1})
    if sampled and sampled[-1] >= step:
        yield FindingKind.STALE, f"step {step} trained tokens of version {sampled[-1]}, which did not exist yet"
    too_old = [version for version in sampled if is_too_old(version, step, policy.horizon)]
    may_mask = policy.stale is Stale.MASK or (policy.stale is Stale.RETRY and expiries >= policy.max_expiries)
    if too_old and not may_mask:
        yield FindingKind.STALE, f"step {step} took tokens of version {too_old[0]}, against {_named(policy)}"
    counted = min((version for version in sampled if version not in too_old), default=None)
    if life.trained is not None and is_too_old(life.trained, step, policy.horizon):
        yield FindingKind.STALE, f"step {step} trained tokens of version {life.trained}, against {_named(policy)}"
    elif life.trained != counted:
        yield FindingKind.DAMAGED, f"its oldest trained token is of version {counted}, by its trail {life.trained}"


def _named(policy: StalePolicy) -> str:
    retries = f", max_expiries: {policy.max_expiries}" if policy.stale is Stale.RETRY else ""
    return f"stale: {policy.stale} with a horizon of {policy.horizon}{retries}"
