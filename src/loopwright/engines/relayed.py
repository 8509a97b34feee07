"""Engines behind the workers of a relay, as one engine.

The rules of a pool choose the worker (`routing.py`): a session stays with its worker, and others go to the one with the
fewest calls. The invariant: an answer that a lost worker began is continued by the same worker, or by another one whose
weights have the version of its last token. `RestartableEngine` continues it; here it only finds the way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from loopwright.engines.http.client import HttpEngine
from loopwright.engines.routing import REMEMBERED, Router
from loopwright.errors import EngineError, EngineLostError
from loopwright.ports import OnPart
from loopwright.types import IN_PLACE, GenerateRequest, Generation, PauseMode, ProbeAnswer, WeightUpdate


@dataclass(slots=True, eq=False)
class RelayPlace:
    """A worker as the router sees it: `engine` is None while it is not connected."""

    name: str
    client: HttpEngine
    is_connected: Callable[[], bool]
    busy: int = 0

    @property
    def engine(self) -> HttpEngine | None:
        return self.client if self.is_connected() else None


@dataclass(frozen=True, slots=True)
class _Begun:
    """An answer that lost its worker."""

    worker: RelayPlace
    version: int | None
    """That of its last token. None if it has no token."""


class RelayedEngines:
    """A `StreamingEngine` that asks one connected worker for each call. It raises EngineLostError if there is none, or
    if the worker is lost."""

    def __init__(self) -> None:
        self._router: Router[RelayPlace] = Router()
        self._places: dict[str, RelayPlace] = {}
        self._begun: OrderedDict[str, _Begun] = OrderedDict()

    def join(self, name: str, client: HttpEngine, is_connected: Callable[[], bool]) -> None:
        """The worker of that name may be asked through `client` while it is connected. One that was known keeps its
        sessions."""
        if (place := self._places.get(name)) is None:
            self._places[name] = RelayPlace(name, client, is_connected)
        else:
            place.client, place.is_connected = client, is_connected

    @property
    def version(self) -> int:
        """The newest of the connected workers, or of all if none is connected."""
        running = self._running()
        return max((place.client.version for place in running or self._places.values()), default=0)

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        begun = self._begun.pop(request.id, None)
        place = await self._choose(request, begun)
        version = None if begun is None else begun.version

        def hear(part: Generation) -> None:
            nonlocal version
            version = part.versions[-1] if part.versions else version
            if on_part is not None:
                on_part(part)

        place.busy += 1
        try:
            return await place.client.generate(request, hear)
        except EngineLostError:
            self._remember(request.id, _Begun(place, version))
            raise
        finally:
            place.busy -= 1

    async def abort(self, request_id: str) -> None:
        for place in self._running():
            await place.client.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        raise _not_ours()

    async def resume(self) -> None:
        raise _not_ours()

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        raise _not_ours()

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        raise _not_ours()

    def _running(self) -> list[RelayPlace]:
        return [place for place in self._places.values() if place.engine is not None]

    async def _choose(self, request: GenerateRequest, begun: _Begun | None) -> RelayPlace:
        running = self._running()
        if begun is not None and begun.version is not None:
            running = [place for place in running if place is begun.worker or await _has(place, begun.version)]
        if not running:
            if begun is not None:
                self._remember(request.id, begun)
            raise EngineLostError(
                "no worker that can answer is connected to the relay",
                remedy="see whether `loopwright worker` is running, and what its log says",
            )
        # A session's home is not asked if it has other weights.
        return self._router.choose(request, running, [one for one in self._places.values() if one not in running])

    def _remember(self, request_id: str, begun: _Begun) -> None:
        self._begun[request_id] = begun
        if len(self._begun) > REMEMBERED:
            self._begun.popitem(last=False)


async def _has(place: RelayPlace, version: int) -> bool:
    """Whether the worker's weights have that version now. It is asked, because it may have changed since it was heard
    of last."""
    try:
        await place.client.hear_state()
    except EngineError:
        return False
    return place.client.version == version


def _not_ours() -> EngineError:
    return EngineError(
        "the weights and pauses of workers belong to whoever started them", remedy="only sample through a relay"
    )
