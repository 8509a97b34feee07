"""Which engine of a pool answers a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from loopwright.engines.supervised import Supervised

REMEMBERED = 10_000
"""Sessions whose engine is known. One that was forgotten costs its next call a prompt that is computed anew."""


class Router:
    """A session stays with the engine that knows its prompt; a new one goes to the engine with the fewest calls.

    Request ids end in the number of the call: what comes before names the session.
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
