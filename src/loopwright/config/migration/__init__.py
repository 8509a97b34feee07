"""Old keys become ours: nested keys of other frameworks (`actor_rollout_ref`), and keys of ours that were renamed."""

from loopwright.config.migration.migrate import Migration, merge, migrate, set_apart, split
from loopwright.config.migration.renamed import take_renamed, with_new_names

__all__ = ["Migration", "merge", "migrate", "set_apart", "split", "take_renamed", "with_new_names"]
