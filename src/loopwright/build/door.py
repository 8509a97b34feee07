"""The door of a run: where other processes sample with its engines."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loopwright.config import DoorConfig
from loopwright.config.extras import require
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.model_card import ModelCard
from loopwright.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from loopwright.gateway.registration import DoorAddress


@dataclass(frozen=True, slots=True)
class Door:
    """Where a run's engines are reached, for sampling. `url` is what others are told; `port` is where it listens."""

    url: str
    key: str
    port: int

    @property
    def address(self) -> DoorAddress:
        from loopwright.gateway.registration import DoorAddress

        return DoorAddress(self.url, self.key)


@asynccontextmanager
async def open_door(config: DoorConfig, controller: RolloutController, card: ModelCard) -> AsyncIterator[Door]:
    """Serve the controller, with a new key, until the context ends."""
    require("serve")
    from loopwright.engines.http.door import door_app
    from loopwright.serve.keys import new_key
    from loopwright.serve.listen import listening

    key, app = new_key(), door_app(controller, card)
    advertised = config.advertise_url
    names = (urlsplit(advertised).hostname or "",) if advertised else ()
    async with listening(app, host=config.host, port=config.port, names=names, key=key) as port:
        yield Door(advertised or f"http://{_in_url(config.host)}:{port}", key, port)


@contextmanager
def told_in(folder: RunFolder, door: Door) -> Iterator[None]:
    """Write where the door is, and its key, into the run folder, for its owner only. The file goes when the block
    ends."""
    _write(folder.door, door)
    try:
        yield
    finally:
        folder.door.unlink(missing_ok=True)


def _write(file: Path, door: Door) -> None:
    # A killed run leaves its file; a new one has the right mode from the beginning.
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        json.dump({"url": door.url, "key": door.key, "port": door.port}, opened)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
