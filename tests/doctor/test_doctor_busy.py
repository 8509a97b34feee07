"""How busy the machine is, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.doctor.busy import busy_share, share_between

#         user nice system idle iowait irq softirq steal guest guest_nice
BEFORE = [100, 0, 100, 1000, 50, 0, 0, 0, 100, 0]


@pytest.mark.parametrize(
    ("passed", "share"),
    [
        ([0, 0, 0, 200, 0, 0, 0, 0, 0, 0], 0.0),
        ([0, 0, 0, 100, 100, 0, 0, 0, 0, 0], 0.0),
        ([40, 0, 10, 150, 0, 0, 0, 0, 0, 0], 0.25),
        ([0, 0, 0, 100, 0, 0, 0, 100, 0, 0], 0.5),
        ([100, 0, 0, 100, 0, 0, 0, 0, 100, 0], 0.5),
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0.0),
    ],
    ids=["idle", "waits for a disk", "a quarter", "stolen by another guest", "guests count once", "no tick passed"],
)
def test_what_is_not_idle_is_busy(passed: list[int], share: float) -> None:
    after = [early + more for early, more in zip(BEFORE, passed, strict=True)]
    assert share_between(BEFORE, after) == pytest.approx(share)


def test_this_machine_has_a_share_between_none_and_all() -> None:
    share = busy_share(seconds=0.05)
    assert share is None or 0 <= share <= 1


def test_a_machine_that_does_not_say_is_not_known(tmp_path: Path) -> None:
    assert busy_share(tmp_path / "stat") is None
