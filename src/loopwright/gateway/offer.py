"""The model that a gateway offers: always the same one, or that of the run that is registered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from loopwright.errors import EngineLostError
from loopwright.gateway.session import never_held
from loopwright.ports import Renderer, StreamingEngine


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a gateway offers. `source` is a folder, or a name on a hub."""

    engine: StreamingEngine
    renderer: Renderer
    max_context: int
    source: str

    @property
    def name(self) -> str:
        return name_of(self.source)


def name_of(source: str) -> str:
    """The name that agents see: the last part of the source. They must not learn where the model's folder is."""
    return PurePath(source).name or "model"


class Offer:
    """The present model, if there is one. A call waits for `wait_seconds` if there is none."""

    def __init__(
        self, served: Served | None = None, held: Callable[[], float] = never_held, *, wait_seconds: float = 0.0
    ) -> None:
        self._served = served
        self._held = held
        self._wait_seconds = wait_seconds
        self._changed = asyncio.Event()
        self._before = 0.0
        self._since = self._reading()

    @property
    def now(self) -> Served | None:
        return self._served

    @property
    def name(self) -> str | None:
        return None if self._served is None else self._served.name

    def held_seconds(self) -> float:
        """For how many seconds in total nobody was answered: there was no model, or its engines were held."""
        return self._before + self._reading() - self._since

    def change(self, served: Served | None, held: Callable[[], float] = never_held) -> None:
        """Offer another model from now on, or none. `held` reads the clock of held seconds of its engines."""
        self._before = self.held_seconds()
        self._served, self._held = served, held
        self._since = self._reading()
        self._changed.set()
        self._changed = asyncio.Event()

    def current(self) -> Served:
        """The present model. Raises EngineLostError if there is none."""
        if self._served is None:
            raise EngineLostError("nobody has brought a model to the gateway yet", remedy="ask again when somebody has")
        return self._served

    async def ready(self) -> Served:
        """The present model, or the next one. Raises EngineLostError if none came in time."""
        if self._served is None:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    while self._served is None:
                        await self._changed.wait()
            except TimeoutError:
                return self.current()
        return self._served

    def _reading(self) -> float:
        """Without a model, every second is held."""
        return time.monotonic() if self._served is None else self._held()
