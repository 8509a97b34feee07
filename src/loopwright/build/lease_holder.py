"""What a run says of itself to the servers that it shares with others: who it is, and what it continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loopwright.ports import ResumePlan, Storage
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.lease import LeaseHolder

if TYPE_CHECKING:
    from loopwright.gateway.takeover import Unfinished


def lease_holder(folder: RunFolder, storage: Storage) -> LeaseHolder:
    """The run in this folder, as it is open now."""
    # Without a database a resumed run cannot be told from the one before. It takes a lease over all the same: the lock
    # of the run folder ensures that the one before has ended.
    return LeaseHolder(folder.stored_id(), storage.lineage)


def unfinished_groups(folder: RunFolder, plans: Mapping[str, ResumePlan]) -> Unfinished:
    """The groups that the run continues. Without a database it continues none."""
    from loopwright.gateway.takeover import Unfinished

    return Unfinished.of(plans, StoredRun(folder.rollouts).opened_at() if folder.rollouts.is_file() else ())
