"""Chooses the engine of a pool that answers a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from loopwright.types import GenerateRequest

REMEMBERED = 10_000
"""How many sessions, and how many groups, are remembered with their engine. If one is forgotten, its next call may have
to compute its prompt again."""
OVERLOAD = 1.5
SESSION_SLACK = 8
"""An engine is overloaded if it has more than 1.5 times the calls of the least busy one, and 8 more: then to wait for
its turn takes longer than to compute a conversation again."""
GROUP_SLACK = 2
"""A group has less in a cache than a session, only its prompt. So its members spread earlier, and do not all go to one
engine while others are idle."""

_busy = attrgetter("busy")


class RoutedPlace(Protocol):
    """Where an engine of a pool is. `engine` is None while it is gone, and `busy` counts its calls."""

    @property
    def engine(self) -> object | None: ...

    @property
    def busy(self) -> int: ...


P = TypeVar("P", bound=RoutedPlace)


class Router(Generic[P]):
    """A session stays with the engine that has its conversation in its cache. A new session goes to the engine that has
    the prompt of its group, and else to the one with the fewest calls, the first of them. An engine that is gone or
    overloaded is left for another, which is the home from then on.

    A request id ends in the number of the call. The part before it names the session. `affinity` names the group.
    """

    def __init__(self) -> None:
        self._sessions: _Homes[P] = _Homes(SESSION_SLACK)
        self._groups: _Homes[P] = _Homes(GROUP_SLACK)

    def choose(self, request: GenerateRequest, running: Sequence[P], avoid: Sequence[P] = ()) -> P:
        """One of `running`. A home that is in `avoid` counts as gone."""
        session, group = request.id.rpartition("/")[0], request.affinity
        chosen = self._sessions.home(session, running, avoid)
        if chosen is None:
            chosen = self._groups.home(group, running, avoid) or min(running, key=_busy)
            self._groups.remember(group, chosen)
        self._sessions.remember(session, chosen)
        return chosen


class _Homes(Generic[P]):
    """Which engine each name was sent to last. `slack` is how many calls more than others an engine may have."""

    def __init__(self, slack: int) -> None:
        self._slack = slack
        self._homes: OrderedDict[str, P] = OrderedDict()

    def home(self, name: str, running: Sequence[P], avoid: Sequence[P]) -> P | None:
        """The home of the name, if it is running and is not overloaded."""
        home = self._homes.get(name)
        if home is None or home.engine is None or home in avoid:
            return None
        # The others are looked at only if they matter: there may be many.
        if home.busy > self._slack and home.busy > OVERLOAD * min(map(_busy, running)) + self._slack:
            return None
        return home

    def remember(self, name: str, home: P) -> None:
        if not name:
            return
        self._homes[name] = home
        self._homes.move_to_end(name)
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
