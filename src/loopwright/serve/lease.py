"""A lease: one run at a time changes what a shared server does.

A run holds it by its id and its lineage, and renews it by a heartbeat. It ends when the run gives it up, or when no
heartbeat came for the promised seconds. While it lives, every other run is refused. The same run with a later lineage
is the resumed one, so it takes the lease over at once, and the earlier process is refused from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.errors import RefusedError

LEASE = "/lease"
RUN_HEADER = "x-loopwright-run"
LINEAGE_HEADER = "x-loopwright-lineage"
"""With these two headers, a request says who asks."""
INSTANCE_HEADER = "x-loopwright-instance"
"""With this header, a request is for one start of the server only. The answer to a lease names it."""
LONGEST_SECONDS = 3600.0
LONGEST_LINEAGE = 18
"""The most digits of a lineage."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """A run, and how often it was opened before."""

    run: str
    lineage: int

    def __str__(self) -> str:
        return f"run {self.run} (lineage {self.lineage})"

    def headers(self) -> dict[str, str]:
        return {RUN_HEADER: self.run, LINEAGE_HEADER: str(self.lineage)}

    @staticmethod
    def of_headers(headers: Mapping[str, str]) -> LeaseHolder | None:
        """Who asks. None if the request does not say."""
        run, lineage = headers.get(RUN_HEADER), headers.get(LINEAGE_HEADER, "")
        # Only decimal digits, and not endless ones: `int` refuses other digits, and very long numbers.
        is_number = lineage.isdecimal() and len(lineage) <= LONGEST_LINEAGE
        return LeaseHolder(run, int(lineage)) if run and is_number else None


class Lease:
    """The lease of one server. `now` is its clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._holder: LeaseHolder | None = None
        self._until = 0.0

    @property
    def holder(self) -> LeaseHolder | None:
        """Who holds it now."""
        return self._holder if self._now() < self._until else None

    def take(self, holder: LeaseHolder, seconds: float) -> None:
        """Take or renew it for `seconds` from now. Refused while another run or a later lineage holds it."""
        present = self.holder
        if present is not None and (present.run != holder.run or present.lineage > holder.lineage):
            raise self._refusal(present)
        self._holder, self._until = holder, self._now() + seconds

    def release(self, asking: LeaseHolder | None) -> None:
        """End it. Only its holder may; without a lease nothing happens."""
        self.check(asking)
        self._holder = None

    def check(self, asking: LeaseHolder | None) -> None:
        """Refuse whoever is not the holder, while there is one."""
        present = self.holder
        if present is not None and present != asking:
            raise self._refusal(present)

    def _refusal(self, present: LeaseHolder) -> RefusedError:
        left = self._until - self._now()
        return RefusedError(
            f"{present} holds this server for another {left:.0f} s, unless it renews its lease",
            remedy="wait for that run to end, or use another server",
            status=409,
        )


def lease_from_json(body: Any) -> tuple[LeaseHolder, float]:
    """Who wants a lease, and for how many seconds."""
    match body:
        case {"run": str(run), "lineage": int(lineage), "seconds": int() | float() as seconds} if (
            run.isascii() and run.isprintable() and run and lineage >= 0 and 0 < seconds <= LONGEST_SECONDS
        ):
            return LeaseHolder(run, lineage), float(seconds)
    raise RefusedError(
        f"this asks for no lease: {str(body)[:200]}",
        remedy=f'send {{"run": TEXT, "lineage": NUMBER, "seconds": NUMBER}}, with at most {LONGEST_SECONDS:g} seconds',
        status=400,
    )


def lease_to_json(holder: LeaseHolder, seconds: float) -> Mapping[str, Any]:
    return {"run": holder.run, "lineage": holder.lineage, "seconds": seconds}
