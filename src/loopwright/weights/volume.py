"""How much an update of weights moves."""

from __future__ import annotations

BYTES = "sync/bytes"
"""The metric: the bytes that each engine gets with an update. 0 where engine and learner share all parameters."""
