"""Who a run is to the servers that it shares with others."""

from __future__ import annotations

from loopwright.buffer.reader import StoredRun
from loopwright.serve.lease import LeaseHolder
from loopwright.trainers.run_folder import RunFolder


def lease_holder(folder: RunFolder) -> LeaseHolder:
    """The run in this folder, as it is open now."""
    # Without a database a resumed run cannot be told from the one before. It takes a lease over all the same: the lock
    # of the run folder ensures that the one before has ended.
    lineage = StoredRun(folder.rollouts).lineage() if folder.rollouts.is_file() else 0
    return LeaseHolder(folder.stored_id(), lineage)
