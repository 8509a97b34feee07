"""Asks a JSON endpoint for a judgement, with retries.

A temporary failure (no connection, no answer in time, 429, 5xx) is retried until the retries or the deadline are used
up, and not earlier than the server asks for. A permanent failure (another 4xx, a redirect, an answer that is no JSON or
too long) is not retried. The result is JSON, or a JudgeError that says what came instead (R2).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from loopwright.config import EndpointConfig
from loopwright.config.extras import require
from loopwright.errors import JudgeError
from loopwright.judgers.verdict import Signature, short_repr

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE_SECONDS = 0.5
"""The pause before the second try. Each later pause is twice as long."""

MAX_ANSWER_BYTES = 1 << 20
"""A verdict is short. A longer answer is no verdict, and is not read to its end."""


def new_client() -> httpx.AsyncClient:
    """The HTTP client of a run. All judgers share its connections, and each judger limits its own requests."""
    require("http")
    import httpx

    return httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))


class _TryAgainError(Exception):
    """A request failed for a temporary reason. `pause` is how long the server asks to wait."""

    def __init__(self, error: JudgeError, pause: float = 0.0) -> None:
        super().__init__(error)
        self.error = error
        self.pause = pause


class JudgeEndpoint:
    """One URL. `key`, if there is one, is sent as a bearer token."""

    def __init__(
        self, signature: Signature, url: str, config: EndpointConfig, client: httpx.AsyncClient, key: str | None
    ) -> None:
        self._signature = signature
        self._url = url
        self._config = config
        self._client = client
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._slots = asyncio.Semaphore(config.concurrency)

    async def post(self, payload: Mapping[str, Any]) -> Any:
        """Send `payload`, and return the endpoint's answer as plain values."""
        # Write ASCII only: sampled text may contain lone surrogates. UTF-8 cannot hold them, but an escape can.
        body = json.dumps(payload, allow_nan=False).encode("ascii")
        async with self._slots:
            deadline = time.monotonic() + self._config.deadline_seconds
            pause = FIRST_PAUSE_SECONDS
            for _ in range(self._config.retries):
                try:
                    return await self._ask(body, deadline)
                except _TryAgainError as again:
                    wait = max(pause, again.pause)
                    if time.monotonic() + wait >= deadline:
                        raise again.error from again
                await asyncio.sleep(wait)
                pause *= 2
            try:
                return await self._ask(body, deadline)
            except _TryAgainError as again:
                raise again.error from again

    async def _ask(self, body: bytes, deadline: float) -> Any:
        import httpx

        seconds = max(0.0, min(self._config.timeout_seconds, deadline - time.monotonic()))
        try:
            # This deadline is for the whole exchange. httpx's own timeout starts again with every byte that arrives.
            async with asyncio.timeout(seconds):
                status, headers, text = await self._exchange(body)
        except TimeoutError as error:
            remedy = "raise its `timeout_seconds`, or see whether it is overloaded"
            late = self._error(f"gave no answer within {seconds:.3g} s", "Timeout", remedy)
            raise _TryAgainError(late) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            words = f"{type(error).__name__}: {error}".rstrip(": ")
            lost = self._error(f"could not be asked: {words}", type(error).__name__, "see whether it is up")
            raise _TryAgainError(lost) from error
        except httpx.InvalidURL as error:
            raise self._error(f"cannot be asked: {error}", "InvalidURL", "correct its address") from error
        return self._read(status, headers, text)

    async def _exchange(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        async with self._client.stream(
            "POST", self._url, content=body, headers=self._headers, timeout=None
        ) as response:
            text = b""
            async for chunk in response.aiter_bytes():
                text += chunk
                if len(text) > MAX_ANSWER_BYTES:
                    raise self._error(
                        f"answered with more than {MAX_ANSWER_BYTES:,} bytes, beginning {short_repr(text)}",
                        "TooLong",
                        "let it answer with a short JSON object",
                    )
            return response.status_code, response.headers, text

    def _read(self, status: int, headers: Mapping[str, str], text: bytes) -> Any:
        if status != 200:
            refused = self._error(
                f"answered with status {status}: {short_repr(text)}", f"Status{status}", _remedy(status), status=status
            )
            if status == 429 or status >= 500:
                raise _TryAgainError(refused, _retry_after(headers))
            raise refused
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._error(
                f"answered with {short_repr(text)}, which is no JSON", "NoJson", "let it answer with a JSON object"
            ) from error

    def _error(self, what: str, error: str, remedy: str, **facts: Any) -> JudgeError:
        return self._signature.error(what, remedy=remedy, error=error, **facts)


def _remedy(status: int) -> str:
    match status:
        case 401 | 403:
            return "see whether the variable that `api_key_env` names holds the right key"
        case 404 | 405:
            return "see whether the address is the right one"
        case 429:
            return "lower the judger's `concurrency`, or raise its `deadline_seconds`"
        case _:
            return "see the endpoint's own log"


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds to wait. 0 if the server does not say, or if its value cannot be read."""
    said = headers.get("retry-after", "")
    try:
        return max(0.0, float(said))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except ValueError:
        return 0.0
