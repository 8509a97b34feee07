"""Holds requests back while an engine is paused.

The invariant: a request that is held back is either let through or aborted, and can be aborted at any time.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.core.wakeup import WakeUp
from loopwright.types import GenerateRequest


@dataclass(slots=True, eq=False)
class _HeldRequest:
    request_id: str
    is_aborted: bool = False


class PauseGate:
    """Open at first."""

    def __init__(self) -> None:
        self._is_open = True
        self._held: set[_HeldRequest] = set()
        self._changed = WakeUp()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def close(self) -> None:
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._changed.notify()

    def abort(self, request_id: str) -> None:
        """Send the requests with this id away."""
        for held in self._held:
            held.is_aborted |= held.request_id == request_id
        self._changed.notify()

    async def admit(self, request: GenerateRequest) -> bool:
        """Wait until the gate is open. False if the request was aborted meanwhile."""
        if self._is_open:
            return True
        held = _HeldRequest(request.id)
        self._held.add(held)
        try:
            await self._changed.until(lambda: held.is_aborted or self._is_open)
        finally:
            self._held.discard(held)
        return not held.is_aborted
