"""Checks what train steps stored of the rollouts that they computed: of trained groups only, and readable."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from loopwright.buffer.archive import Archive, Parcel, ParcelKind
from loopwright.buffer.token_numbers import decode_numbers
from loopwright.errors import LoopwrightError
from loopwright.runs.auditing.findings import Finding, FindingKind, group_name
from loopwright.types import GroupStatus


def check_computed(db: sqlite3.Connection, archive: Archive) -> Iterator[Finding]:
    """It goes step by step, because there is one file per step."""
    found = db.execute(
        "SELECT task_set, draw, round, member, attempt, status, step, loss_terms, numbers"
        " FROM trained LEFT JOIN groups USING (task_set, draw, round) ORDER BY step, 1, 2, 3, 4"
    )
    for task_set, draw, round, member, attempt, status, step, loss_terms, numbers in found:
        group = (task_set, draw, round)
        name = f"{group_name(group)}/{member:02d}/{attempt}"
        if status != GroupStatus.CONSUMED:
            yield Finding(FindingKind.DAMAGED, name, f"a train step computed it, and its group is {status or 'gone'}")
            continue
        try:
            if numbers is None and loss_terms:
                numbers = archive.numbers(group, Parcel(ParcelKind.TRAINED, step), member, attempt)
                if numbers is None:
                    yield Finding(FindingKind.DAMAGED, name, "the numbers of its trained tokens are gone")
            if numbers is not None:
                decode_numbers(numbers)
        except LoopwrightError as error:
            yield Finding(FindingKind.DAMAGED, name, error.message)
