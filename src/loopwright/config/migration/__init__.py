"""Old nested keys (`actor_rollout_ref`) become ours: the tables of old frameworks, and how their values move."""

from loopwright.config.migration.migrate import Migration, merge, migrate, set_apart, split

__all__ = ["Migration", "merge", "migrate", "set_apart", "split"]
