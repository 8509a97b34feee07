"""Sends the file of new weights to an engine on another machine, which cannot open it.

Each engine gets a group of its own, for one update: an engine that dies or hangs breaks no other's (docs/adr/0005). The
engine is told over HTTP where to receive the bytes; they are sent at the same time, in a thread with a deadline. What
the engine answers decides: one that says why it did not take them has refused, one that does not answer is lost. One
that says that it has them is believed, because the proof follows (W1).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from loopwright.core.together import call_off
from loopwright.errors import EngineLostError, LoopwrightError
from loopwright.models.broadcast import GPU, BroadcastSender
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import (
    IN_PLACE,
    BroadcastBackend,
    GenerateRequest,
    Generation,
    PauseMode,
    ProbeAnswer,
    WeightBroadcast,
    WeightFile,
    WeightUpdate,
)

SECONDS = 300.0
BUCKET_BYTES = 2**26
ANSWER_SECONDS = 5.0
"""How much longer than the transfer an engine may take to say that it failed: its own limit begins a little later."""


@dataclass(frozen=True, slots=True)
class Broadcasting:
    """How weights are sent to one engine: from `host`, an address of this machine that the engine can reach, to all of
    its `workers`. A transfer may take `seconds`. With NCCL it goes through the GPU `device` of this machine."""

    host: str
    workers: int = 1
    backend: BroadcastBackend = BroadcastBackend.GLOO
    seconds: float = SECONDS
    bucket_bytes: int = BUCKET_BYTES
    device: str = GPU


class BroadcastEngine:
    """A `StreamingEngine` that sends weight files to `engine` instead of naming them. All else is passed on."""

    def __init__(self, engine: StreamingEngine, how: Broadcasting) -> None:
        self._engine = engine
        self._how = how

    @property
    def version(self) -> int:
        return self._engine.version

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        return await self._engine.generate(request, on_part)

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._engine.pause(mode)

    async def resume(self) -> None:
        await self._engine.resume()

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        return await self._engine.probe(request)

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        """Raises EngineLostError if the engine does not answer in time, and WeightsError if the weights did not reach
        it. Then it has the weights that it had, and another update may follow."""
        if not isinstance(update, WeightFile):
            await self._engine.load(version, update)
            return
        async with _sending(update, self._how) as (told, sent):
            loading = asyncio.ensure_future(self._engine.load(version, told))
            try:
                await self._both(loading, sent)
            finally:
                await call_off(loading)

    async def _both(self, loading: asyncio.Future[None], sent: asyncio.Future[None]) -> None:
        """Wait until the engine has answered. If the bytes were sent, whoever asked for the update limits that wait."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._how.seconds + ANSWER_SECONDS
        await asyncio.wait((loading, sent), timeout=deadline - clock(), return_when=asyncio.FIRST_COMPLETED)
        failed = sent.exception() if sent.done() else None
        if sent.done() and failed is None:
            await loading
            return
        # An engine that takes part in a transfer that fails notices it, and says so.
        await asyncio.wait((loading,), timeout=max(0.0, deadline - clock()))
        if not loading.done():
            raise EngineLostError(
                f"the engine did not take the weights within {self._how.seconds:g} s, and does not answer",
                remedy="see its log, and whether it can reach this machine",
            )
        said = loading.exception()
        if said is not None and isinstance(failed, LoopwrightError):
            said.add_note(f"The sender says: {failed.message}")
        loading.result()


@asynccontextmanager
async def _sending(file: WeightFile, how: Broadcasting) -> AsyncIterator[tuple[WeightBroadcast, asyncio.Future[None]]]:
    """Send in a thread. Gives what the receivers must be told, and what is done when all bytes were sent.

    The thread ends soon after the block does. Nobody waits for it: what the other side holds up, it holds up until the
    deadline.
    """
    loop = asyncio.get_running_loop()
    sent: asyncio.Future[None] = loop.create_future()
    sender = await asyncio.to_thread(
        BroadcastSender,
        file,
        how.host,
        workers=how.workers,
        backend=how.backend,
        seconds=how.seconds,
        bucket_bytes=how.bucket_bytes,
        device=how.device,
    )

    def settle(error: Exception | None) -> None:
        if not sent.done():
            sent.set_result(None) if error is None else sent.set_exception(error)

    def tell(error: Exception | None = None) -> None:
        # The loop may be closed when a thread that was held up ends.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, error)

    def send() -> None:
        try:
            sender.send(tell)
        except Exception as error:
            tell(error)

    threading.Thread(target=send, name="loopwright-send", daemon=True).start()
    try:
        yield sender.update, sent
    finally:
        sender.stop()
        # Its error was either raised or is beside the point.
        sent.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
