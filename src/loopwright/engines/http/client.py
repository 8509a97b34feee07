"""An engine that runs somewhere else, behind HTTP.

Every wait has a deadline: a stream that shows no sign of life for too long is a lost engine. What cannot be reached is
an EngineLostError, and what the server says is wrong comes back as the error that it is. Cancelling a call closes its
connection, which the server takes as the end of the request.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx

from loopwright.engines.http.model_card import MODELS, ModelCard, card_from_json
from loopwright.engines.http.wire import GENERATE, generation_from_json, request_to_json, weights_to_json
from loopwright.errors import EngineError, EngineLostError, LoopwrightError, WeightsError
from loopwright.ports import OnPart
from loopwright.serve.errors import read_error
from loopwright.types import NOTHING_YET, GenerateRequest, Generation, PauseMode, WeightFile

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""How long a stream may show nothing at all. The server shows at least a beat, far more often."""
COMMAND_SECONDS = 600.0
"""How long a pause (which may have to drain) or a load may take."""
TRIES = 3
"""A connection that was kept alive may have been reset meanwhile: the same is asked again on a fresh one."""

RESET = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.CloseError)
KINDS: Mapping[str, type[LoopwrightError]] = {"WeightsError": WeightsError}
MODES = {PauseMode.DRAIN: "wait", PauseMode.ABORT: "abort", PauseMode.KEEP: "keep"}


class HttpEngine:
    """An `Engine`, and one that shows its tokens early. Made by `connect`."""

    def __init__(self, client: httpx.AsyncClient, version: int) -> None:
        self._client = client
        self._version = version

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, key: str | None, *, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[Self]:
        """The engine at `url`."""
        async with httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx.Timeout(silence_seconds, connect=CONNECT_SECONDS, pool=None),
            # Nothing between us and our own engine, whatever the environment says about proxies.
            trust_env=False,
        ) as client:
            engine = cls(client, 0)
            version = (await engine._command("GET", "/version"))["version"]
            # vLLM says there which release it is; the weights that it was started with are version 0.
            engine._version = version if isinstance(version, int) else 0
            yield engine

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        body = {**request_to_json(request), "stream": True}
        whole = NOTHING_YET
        async with self._ask("POST", GENERATE, body) as response:
            async for event in _events(response):
                if "error" in event:
                    raise read_error(event, KINDS, EngineError)
                part, ended = generation_from_json(event)
                whole = whole.then(part)
                if ended:
                    return whole
                if on_part is not None:
                    on_part(part)
        raise EngineLostError("the answer broke off", remedy="nothing to do: it goes on from the tokens that came")

    async def model(self) -> ModelCard:
        """Which model is served."""
        return card_from_json(await self._command("GET", MODELS))

    async def abort(self, request_id: str) -> None:
        await self._command("POST", "/abort_requests", {"request_ids": [request_id]})

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._command("POST", f"/pause?mode={MODES[mode]}")

    async def resume(self) -> None:
        await self._command("POST", "/resume")

    async def load(self, version: int, weights: Mapping[str, Any] | WeightFile | None = None) -> None:
        if weights is not None and not isinstance(weights, WeightFile):
            raise EngineError(
                "tensors cannot be sent to an engine in another process", remedy="publish them as a WeightFile"
            )
        await self._command("POST", "/weights", weights_to_json(version, weights))
        self._version = version

    async def _command(self, method: str, path: str, body: Any = None) -> Any:
        async with self._ask(method, path, body, seconds=COMMAND_SECONDS) as response:
            return json.loads(await response.aread())

    @asynccontextmanager
    async def _ask(
        self, method: str, path: str, body: Any = None, seconds: float | None = None
    ) -> AsyncIterator[httpx.Response]:
        request = self._client.build_request(method, path, json=body)
        if seconds is not None:
            request.extensions["timeout"] = {**request.extensions["timeout"], "read": seconds}
        try:
            response = await self._send(request)
            try:
                if response.status_code != httpx.codes.OK:
                    raise read_error(_loads(await response.aread()), KINDS, EngineError)
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise EngineLostError(
                f"the engine at {self._client.base_url} cannot be reached: {type(error).__name__} {error}".rstrip(),
                remedy="see whether its process is running, and what its log says",
            ) from error

    async def _send(self, request: httpx.Request) -> httpx.Response:
        for _ in range(TRIES - 1):
            try:
                return await self._client.send(request, stream=True)
            except RESET:
                continue
        return await self._client.send(request, stream=True)


async def _events(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
