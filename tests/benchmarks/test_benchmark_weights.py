"""The benchmark of weights updates engines by every transport, and says how long each part took."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.models import Model
from benchmarks.setting import Places
from benchmarks.weights import Weights
from benchmarks.workers.ours_weights import opened

pytestmark = pytest.mark.real

TINY = Weights("tiny", "for a test", model=Model.TINY, threads=1)


async def test_a_round_is_one_proven_update_by_each_transport(tmp_path: Path) -> None:
    prepared = TINY.prepare(tmp_path, Places(tmp_path, tmp_path))
    async with opened(prepared.ours) as update:
        updates = [await update(version) for version in (1, 2, 3)]
    for parts in updates:
        assert {name: parts[name].keys() for name in parts} == {
            "in_place": {"seconds", "load", "proof"},
            "file": {"seconds", "write", "load", "proof"},
            "broadcast": {"seconds", "write", "load", "proof"},
            "object_store": {"seconds", "write", "load", "proof"},
        }
