"""Checks whether a run lost a group, counted one twice, or trained one that it should not have. It only reads."""
