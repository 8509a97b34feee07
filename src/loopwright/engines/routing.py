"""Chooses the engine of a pool that answers a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from loopwright.engines.supervised import Supervised

REMEMBERED = 10_000
"""How many sessions are remembered with their engine. If a session is forgotten, its next call may have to compute its
prompt again."""


class Router:
    """A session stays with the engine that has its prompt in its cache. A new session goes to the engine with the
    fewest calls.

    A request id ends in the number of the call. The part before it names the session.
    """

    def __init__(self) -> None:
        self._homes: OrderedDict[str, Supervised] = OrderedDict()

    def choose(self, request_id: str, running: Sequence[Supervised]) -> Supervised:
        session = request_id.rpartition("/")[0]
        known = self._homes.pop(session, None)
        least_busy = min(running, key=lambda member: member.busy)
        home = self._homes[session] = known if known is not None and known in running else least_busy
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
        return home
